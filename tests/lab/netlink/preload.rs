//! A library that is loaded before a program (`LD_PRELOAD`): while a file exists, netlink
//! requests fail as if the kernel had no memory for them.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

/// While it exists, requests fail.
const FILE: &std::ffi::CStr = c"/run/netlink/fails";
/// `AF_NETLINK` of `linux/socket.h`.
const NETLINK: u16 = 16;
/// `asm-generic/errno.h`.
const ENOBUFS: c_int = 105;
/// `RTLD_NEXT` of `dlfcn.h`.
const NEXT: *mut c_void = usize::MAX as *mut c_void;
/// No `struct sockaddr` has more bytes than this (`struct sockaddr_storage`).
const ADDRESS: usize = 128;

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn access(path: *const c_char, mode: c_int) -> c_int;
    fn getsockname(socket: c_int, address: *mut c_void, length: *mut u32) -> c_int;
    fn __errno_location() -> *mut c_int;
}

/// Returns whether a request of `socket` should fail.
fn fails(socket: c_int) -> bool {
    let mut address = [0_u8; ADDRESS];
    let mut length = ADDRESS as u32;
    // SAFETY: the path ends with a zero byte, and the address has as many bytes as said.
    unsafe {
        access(FILE.as_ptr(), 0) == 0
            && getsockname(socket, address.as_mut_ptr().cast(), &raw mut length) == 0
            && u16::from_ne_bytes([address[0], address[1]]) == NETLINK
    }
}

/// Defines functions that replace those of libc whose first argument is a socket.
macro_rules! stand_before {
    ($($name:literal $function:ident($($argument:ident: $type:ty),*);)*) => { $(
        /// Calls libc's function, unless requests should fail.
        ///
        /// # Safety
        /// The same as for libc's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $function(socket: c_int, $($argument: $type),*) -> isize {
            type Function = unsafe extern "C" fn(c_int, $($type),*) -> isize;
            static FOUND: OnceLock<Function> = OnceLock::new();
            // SAFETY: the name ends with a zero byte; libc has the function, with these
            // arguments, for which the caller vouches.
            unsafe {
                if fails(socket) {
                    *__errno_location() = ENOBUFS;
                    return -1;
                }
                let next = FOUND.get_or_init(|| {
                    std::mem::transmute::<*mut c_void, Function>(dlsym(NEXT, $name.as_ptr()))
                });
                next(socket, $($argument),*)
            }
        }
    )* };
}

stand_before! {
    c"send" send(bytes: *const c_void, length: usize, flags: c_int);
    c"sendto" sendto(
        bytes: *const c_void, length: usize, flags: c_int, to: *const c_void, to_length: u32
    );
    c"sendmsg" sendmsg(message: *const c_void, flags: c_int);
}
