//! The memory into which a ring receives: buffers that the kernel takes one after the other,
//! and gets back by a ring of entries (`IORING_REGISTER_PBUF_RING`,
//! include/uapi/linux/io_uring.h).

use std::{
    ffi::c_void,
    io,
    ptr::{self, NonNull},
    slice,
    sync::atomic::{AtomicU16, Ordering::Release},
};

use io_uring::{Submitter, types::BufRingEntry};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Size of a buffer, in bytes: most messages are shorter.
pub const SIZE: usize = 4096;

/// Number of buffers, a power of two. Newer kernels receive for some 40 connections in one system
/// call (`IO_LOCAL_TW_DEFAULT_MAX` in io_uring/io_uring.c), while the bytes of the previous call
/// are being sent.
const COUNT: u16 = 128;

/// Where the buffers begin: before them are the entries, which begin at a page.
const OFFSET: usize = 4096;

const LENGTH: usize = OFFSET + COUNT as usize * SIZE;

/// A buffer with received bytes, which must be given back.
#[derive(Debug)]
pub struct Buffer(u16);

/// All buffers of a ring.
pub(super) struct Buffers {
    memory: NonNull<c_void>,
    tail: u16,
    /// Number of buffers that the kernel has.
    provided: u16,
}

// SAFETY: the memory belongs to it alone, and to the kernel.
unsafe impl Send for Buffers {}

impl Buffers {
    /// Makes buffers, none of which the kernel has.
    pub(super) fn new() -> io::Result<Buffers> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, wherever the kernel finds room for it.
        let memory = unsafe { mmap_anonymous(ptr::null_mut(), LENGTH, access, flags)? };
        let memory = NonNull::new(memory).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Buffers {
            memory,
            tail: 0,
            provided: 0,
        })
    }

    /// Tells the kernel where they are.
    pub(super) fn register(&self, ring: &Submitter<'_>, group: u16) -> io::Result<()> {
        let address = self.memory.as_ptr() as u64;
        // SAFETY: the memory is there as long as the ring, which is dropped before it. The kernel
        // writes to it only while this thread is in a system call of the ring (DEFER_TASKRUN).
        unsafe { ring.register_buf_ring_with_flags(address, COUNT, group, 0) }
    }

    /// Gives all of them to the kernel, which has none yet.
    pub(super) fn provide_all(&mut self) {
        (0..COUNT).for_each(|number| self.provide(Buffer(number)));
    }

    /// Gives one buffer to the kernel.
    pub(super) fn provide(&mut self, buffer: Buffer) {
        let entries: *mut BufRingEntry = self.memory.as_ptr().cast();
        let place = usize::from(self.tail % COUNT);
        let at = self.at(&buffer);
        // SAFETY: `place` is one of the entries, which begin the mapping, and the kernel reads
        // none beyond the tail. Any bits are an entry.
        unsafe {
            let entry = &mut *entries.add(place);
            entry.set_addr(at as u64);
            entry.set_len(SIZE as u32);
            entry.set_bid(buffer.0);
        }
        self.tail = self.tail.wrapping_add(1);
        self.provided += 1;
        // SAFETY: the tail is in the first of the entries, and only read by the kernel.
        unsafe {
            let tail = BufRingEntry::tail(entries).cast_mut();
            AtomicU16::from_ptr(tail).store(self.tail, Release);
        }
    }

    /// Takes the buffer `number`, which the kernel has filled.
    pub(super) fn taken(&mut self, number: u16) -> Buffer {
        self.provided = self.provided.saturating_sub(1);
        Buffer(number)
    }

    /// Number of buffers that the kernel has.
    pub(super) fn provided(&self) -> usize {
        self.provided.into()
    }

    /// The content of a buffer.
    pub(super) fn bytes(&self, buffer: &Buffer) -> &[u8] {
        // SAFETY: it is within the mapping, and the kernel no longer writes to it until it is given
        // back, for which it is moved.
        unsafe { slice::from_raw_parts(self.at(buffer), SIZE) }
    }

    fn at(&self, buffer: &Buffer) -> *const u8 {
        // A number that the kernel made up would name another buffer, but no other memory.
        let number = usize::from(buffer.0 % COUNT);
        let memory: *const u8 = self.memory.as_ptr().cast_const().cast();
        // SAFETY: within the mapping.
        unsafe { memory.add(OFFSET + number * SIZE) }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it any more; fails for no mapping of ours.
        let _ = unsafe { munmap(self.memory.as_ptr(), LENGTH) };
    }
}
