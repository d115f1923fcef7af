//! `deltaic serve`: the store for others, over the network.

use crate::allocator;
use crate::arguments::{duration, size};
use crate::output::{Answer, Page};
use crate::report::{Failure, Kind, Result};
use crate::serve::{ServeOptions, Server, Shutdown};
use crate::session::Session;
use clap::{Args, ValueEnum};
use deltaic_store::Store;
use serde::Serialize;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// What is logged where nothing is said.
const LOG_VARIABLE: &str = "DELTAIC_LOG";

/// Serve the store to trainers and workers, here or elsewhere, until stopped.
///
/// They name the server with --endpoint URL or DELTAIC_ENDPOINT in place of a store. Meanwhile no other process can
/// use the store's folder: commands on this machine go through the server too.
///
/// Nothing that is sent is encrypted yet, and nobody is asked who they are: the server listens where this machine alone
/// reaches it, unless --insecure says that the network can be trusted.
///
/// SIGTERM or Ctrl-C lets running calls end and then the server; a second one ends it at once.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic serve                               the default store, at http://127.0.0.1:7421
  deltaic --store /data/store serve --listen 127.0.0.1:0 --json
                                              at a free port, which is told in JSON
  deltaic serve --listen 10.0.0.5:7421 --insecure
                                              in a network that can be trusted
  deltaic serve --log-format json --log debug with logs for machines, and more of them")]
pub struct ServeArgs {
    /// Address to listen on; port 0 is any that is free.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7421")]
    listen: SocketAddr,
    /// Allow an address that other machines reach, though everybody there can then read and change the store.
    #[arg(long)]
    insecure: bool,
    /// Memory for composed patches that may be asked for again.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    cache: u64,
    /// Connections at a time.
    #[arg(long, value_name = "N", default_value = "1024", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,
    /// How long calls may go on once the server is asked to end.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    drain: Duration,
    /// What the logs on standard error look like.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
    /// What is logged: error, warn, info, debug, trace, or such per module [env: DELTAIC_LOG] [default: info].
    #[arg(long, value_name = "FILTER", value_parser = log_filter)]
    log: Option<String>,
}

/// How logs look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Lines for people.
    Text,
    /// A JSON document per line.
    Json,
}

fn log_filter(text: &str) -> Result<String, String> {
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!(
            "{error}: it is a level such as info, or module=level,…"
        )),
    }
}

/// Where the server is.
#[derive(Serialize)]
struct Listening {
    listening: String,
    store: String,
}

impl Answer for Listening {
    fn print(&self, _page: &mut Page<'_>) -> io::Result<()> {
        // People are told on standard error, where the logs are.
        Ok(())
    }
}

/// Run the command until the server has ended.
///
/// # Errors
///
/// If the store cannot be opened, the address cannot be had, or may not be.
pub fn run(args: &ServeArgs, session: &Session) -> Result<ExitCode> {
    start_logs(args, session)?;
    allocator::serve_long();
    let store = session.store()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("deltaic-serve")
        .build()
        .map_err(|error| {
            Failure::new(Kind::Error, format!("threads cannot be started: {error}"))
        })?;
    let ended = runtime.block_on(serve(store, args, session));
    // What the server could not end in time is left behind: nothing of it is visible.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

async fn serve(store: Arc<Store>, args: &ServeArgs, session: &Session) -> Result<ExitCode> {
    let shown = store.root().display().to_string();
    let shutdown = Shutdown::default();
    // Before anybody is told that the server is there, and might end it.
    let signals = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
    let [interrupts, terminations] = signals;
    let unheard =
        |error: io::Error| Failure::new(Kind::Error, format!("signals cannot be handled: {error}"));
    let mut signals = [interrupts.map_err(unheard)?, terminations.map_err(unheard)?];
    let server = Server::bind(store, options(args)).await?;
    let address = server.address();
    if args.insecure && !address.ip().is_loopback() {
        session.warn(format_args!(
            "everybody who reaches {address} can read and change the store"
        ));
    }
    let url = format!("http://{address}");
    session.talk(format_args!("serving {shown} at {url}"));
    session.next_answer(&Listening {
        listening: url,
        store: shown,
    })?;
    let mut running = std::pin::pin!(server.run(shutdown.clone()));
    tokio::select! {
        ended = &mut running => return ended.map(|()| ExitCode::SUCCESS),
        () = any(&mut signals) => {}
    }
    session.talk("ending when running calls have ended; a second signal ends them too");
    shutdown.drain.cancel();
    tokio::select! {
        ended = &mut running => return ended.map(|()| ExitCode::SUCCESS),
        () = any(&mut signals) => {}
    }
    shutdown.now.cancel();
    running.await?;
    Ok(ExitCode::from(Kind::Interrupted.code()))
}

/// Wait for one of the signals.
async fn any(signals: &mut [Signal; 2]) {
    let [first, second] = signals;
    tokio::select! {
        _ = first.recv() => {}
        _ = second.recv() => {}
    }
}

fn options(args: &ServeArgs) -> ServeOptions {
    ServeOptions {
        listen: args.listen,
        insecure: args.insecure,
        cache_bytes: args.cache,
        max_connections: args.max_connections as usize,
        drain: args.drain,
        ..ServeOptions::default()
    }
}

/// Log to standard error from now on.
fn start_logs(args: &ServeArgs, session: &Session) -> Result<()> {
    let variable = std::env::var(LOG_VARIABLE)
        .ok()
        .filter(|text| !text.is_empty());
    let filter = match (&args.log, variable) {
        (Some(filter), _) => filter.clone(),
        (None, Some(filter)) => log_filter(&filter).map_err(|what| {
            Failure::usage(format!("{LOG_VARIABLE} is {filter:?}: {what}"))
                .hint("unset it, or give it such a value")
        })?,
        (None, None) if session.settings.quiet => "warn".to_owned(),
        (None, None) if session.settings.verbose => {
            "debug,h2=info,hyper=info,tower=info".to_owned()
        }
        (None, None) => "info".to_owned(),
    };
    let logs = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(io::stderr)
        .with_ansi(session.settings.color.paint(&io::stderr()).has_colors())
        .log_internal_errors(false);
    let started = match args.log_format {
        LogFormat::Text => logs.try_init(),
        LogFormat::Json => logs.json().try_init(),
    };
    started.map_err(|error| Failure::new(Kind::Error, format!("logs cannot be written: {error}")))
}
