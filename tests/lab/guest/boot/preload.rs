//! A library that is loaded before the guest's kernel (`LD_PRELOAD`).
//!
//! User-Mode Linux 6.1 stores the floating-point registers of a process in a buffer of
//! 2,696 bytes, and sets them from it with `PTRACE_SETREGSET`. The host's kernel accepts
//! only the whole state (`xstateregs_set` of `arch/x86/kernel/fpu/regset.c`), which has
//! 11,008 bytes on processors with AMX: no process of the guest would ever run. This
//! library adds the rest: zeros, as no process of the guest uses it.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_long, c_void};
use std::sync::OnceLock;

/// `PTRACE_GETREGSET` and `PTRACE_SETREGSET` of `linux/ptrace.h`.
const GET: c_int = 0x4204;
const SET: c_int = 0x4205;
/// `NT_X86_XSTATE` of `linux/elf.h`.
const XSTATE: usize = 0x202;
/// `RTLD_NEXT` of `dlfcn.h`.
const NEXT: *mut c_void = usize::MAX as *mut c_void;
/// `SIG_SETMASK` of `asm-generic/signal-defs.h`.
const SETMASK: c_int = 2;
/// Larger than the state of any processor.
const LARGEST: usize = 64 * 1024;
/// `_NSIG / 8` of glibc: bytes of a set of signals.
const SIGNALS: usize = 128;

type Ptrace = unsafe extern "C" fn(c_int, c_int, *mut c_void, *mut c_void) -> c_long;

/// `struct iovec` of `linux/uio.h`.
#[repr(C)]
struct Buffer {
    base: *mut c_void,
    length: usize,
}

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn sigprocmask(how: c_int, set: *const [u8; SIGNALS], old: *mut [u8; SIGNALS]) -> c_int;
}

/// Too large for the stacks of the guest's kernel, which have 16 KiB. Only its beginning
/// is ever written.
struct State(UnsafeCell<[u8; LARGEST]>);

// SAFETY: the guest's kernel has one processor, on which nothing else runs while
// signals are blocked.
unsafe impl Sync for State {}

static STATE: State = State(UnsafeCell::new([0; LARGEST]));

/// The libc function that this library replaces.
fn next() -> Ptrace {
    static FOUND: OnceLock<Ptrace> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // SAFETY: the name ends with a zero byte; libc has the function, with
        // arguments of this size.
        unsafe { std::mem::transmute::<*mut c_void, Ptrace>(dlsym(NEXT, c"ptrace".as_ptr())) }
    })
}

/// The length of the state of `process`, in bytes.
///
/// # Safety
/// Signals are blocked.
unsafe fn length_of(process: c_int) -> usize {
    static LENGTH: OnceLock<usize> = OnceLock::new();
    *LENGTH.get_or_init(|| {
        let mut whole = Buffer {
            base: STATE.0.get().cast(),
            length: LARGEST,
        };
        // SAFETY: the buffer is as long as it says, and nothing else uses it.
        unsafe {
            next()(GET, process, XSTATE as *mut c_void, (&raw mut whole).cast());
            (*STATE.0.get()).fill(0);
        }
        whole.length
    })
}

/// Does the same as libc's function, with the whole state if only a part is given.
///
/// # Safety
/// The same as for libc's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ptrace(
    request: c_int,
    process: c_int,
    address: *mut c_void,
    data: *mut c_void,
) -> c_long {
    if request != SET || address as usize != XSTATE {
        // SAFETY: as the caller guarantees.
        return unsafe { next()(request, process, address, data) };
    }
    let (all, mut before) = ([0xff; SIGNALS], [0; SIGNALS]);
    // SAFETY: with this request the caller passes such a buffer; the state is as long as
    // its length says, and signals are blocked while it is used.
    unsafe {
        sigprocmask(SETMASK, &raw const all, &raw mut before);
        let given = &*data.cast::<Buffer>();
        let mut whole = Buffer {
            base: STATE.0.get().cast(),
            length: length_of(process).max(given.length),
        };
        given.base.copy_to_nonoverlapping(whole.base, given.length);
        let set = next()(request, process, address, (&raw mut whole).cast());
        sigprocmask(SETMASK, &raw const before, std::ptr::null_mut());
        set
    }
}
