//! Counts what decoders allocate, so that a hostile length that is believed fails a test.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, noting the largest request of each thread.
struct Noting;

#[global_allocator]
static ALLOCATOR: Noting = Noting;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn note(size: usize) {
    // A thread that is ending allocates without its locals.
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(size)));
}

// SAFETY: every call goes to the system's allocator with the arguments it came with; `note` does not allocate,
// since its thread local has a constant initial value and no destructor.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: the caller keeps the contract of `realloc`; the block came from the system's allocator.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`; the block came from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Bytes of the largest single allocation that `work` makes on this thread.
pub fn largest_of(work: impl FnOnce()) -> usize {
    LARGEST.set(0);
    work();
    LARGEST.get()
}

#[test]
fn allocations_are_noted() {
    let largest = largest_of(|| drop(std::hint::black_box(vec![1u8; 12_345])));
    assert_eq!(largest, 12_345);
    assert!(largest_of(|| drop(std::hint::black_box(vec![0u8; 1 << 20]))) >= 1 << 20);
}
