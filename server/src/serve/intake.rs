//! Requests for weights as they come in. They may be long, and take many times their bytes once they are understood: so many
//! are read at a time, the others wait unread, and one that does not arrive is given up.

use super::state::busy;
use super::status::status;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Semaphore;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};
use tower::Layer;

/// Requests that are read at a time.
const MAX_READ: usize = 16;

/// The calls whose requests may be long. What an upload sends is read item by item.
const LONG: [&str; 3] = [
    "/deltaic.v1.Transfer/Plan",
    "/deltaic.v1.Transfer/Fetch",
    "/deltaic.v1.Transfer/GetFile",
];

/// Lets requests in.
#[derive(Debug, Clone)]
pub(crate) struct Intake {
    places: Arc<Semaphore>,
    patience: Duration,
}

impl Intake {
    /// Give up a request that is not there after so long.
    pub(crate) fn new(patience: Duration) -> Self {
        Self {
            places: Arc::new(Semaphore::new(MAX_READ)),
            patience,
        }
    }
}

impl<S> Layer<S> for Intake {
    type Service = IntakeService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        IntakeService {
            inner,
            intake: self.clone(),
        }
    }
}

/// A service whose requests are let in.
#[derive(Debug, Clone)]
pub(crate) struct IntakeService<S> {
    inner: S,
    intake: Intake,
}

impl<S> Service<Request<Body>> for IntakeService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_long = LONG.contains(&request.uri().path());
        let answer = self.inner.call(request);
        if !is_long {
            return Box::pin(answer);
        }
        let Intake { places, patience } = self.intake.clone();
        let let_in = async move {
            // Never closed. Answers are streams that begin at once, so that a place is soon free again.
            let _place = places.acquire_owned().await;
            answer.await
        };
        Box::pin(async move {
            let answer = tokio::time::timeout(patience, let_in).await;
            answer.unwrap_or_else(|_| Ok(status(busy(patience)).into_http()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Clone, Default)]
    struct Stuck(Arc<AtomicUsize>);

    impl Service<Request<Body>> for Stuck {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            let begun = self.0.clone();
            Box::pin(async move {
                begun.fetch_add(1, Ordering::SeqCst);
                std::future::pending().await
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn few_long_requests_are_read_at_a_time_and_none_for_ever() {
        let begun = Stuck::default();
        let patience = Duration::from_secs(5);
        let mut service = Intake::new(patience).layer(begun.clone());
        let mut call = |path: &str| {
            let request = Request::builder().uri(path).body(Body::default());
            service.call(request.expect("a request"))
        };
        let calls: Vec<_> = (0..MAX_READ * 2)
            .map(|_| tokio::spawn(call(LONG[1])))
            .collect();
        let short = tokio::spawn(call("/deltaic.v1.Versions/Resolve"));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(begun.0.load(Ordering::SeqCst), MAX_READ + 1);
        for call in calls {
            let answer = call.await.expect("it ends").expect("an answer");
            let code = answer.headers().get("grpc-status").expect("a status");
            assert_eq!(code, "8", "resource exhausted");
        }
        assert!(!short.is_finished());
        short.abort();
    }
}
