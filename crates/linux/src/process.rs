//! Processes held by a descriptor (`pidfd_open(2)`): signalled, waited for and asked for their sockets
//! without the risk that their number was reused. Also [`run_in_child`], which runs a closure in another process
//! that shares this one's memory.

use std::{
    ffi::{c_int, c_void},
    fs, io,
    net::{SocketAddr, UdpSocket},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    thread,
    time::{Duration, Instant},
};

use socket2::{Socket, Type};

/// Asks a process to end.
pub const SIGTERM: i32 = libc::SIGTERM;
/// Kills a process.
pub const SIGKILL: i32 = libc::SIGKILL;
/// Asks a daemon to read its configuration again.
pub const SIGHUP: i32 = libc::SIGHUP;
/// Interrupts, as Ctrl-C does.
pub const SIGINT: i32 = libc::SIGINT;
/// Stops a process unconditionally.
pub const SIGSTOP: i32 = libc::SIGSTOP;
/// Continues a stopped process.
pub const SIGCONT: i32 = libc::SIGCONT;

/// A process, held by descriptor.
#[derive(Debug)]
pub struct PidFd {
    pid: i32,
    descriptor: OwnedFd,
}

impl PidFd {
    /// Holds the process that has number `pid` now.
    ///
    /// # Errors
    /// `ESRCH` if there is none.
    pub fn open(pid: i32) -> io::Result<Self> {
        // SAFETY: takes two integers and gives a new descriptor or -1.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given this descriptor to us alone; it fits an i32.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor as i32) };
        Ok(Self { pid, descriptor })
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends a signal, for example [`SIGTERM`].
    ///
    /// # Errors
    /// `ESRCH` if the process has ended and been reaped.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        // SAFETY: the descriptor is open, and a null siginfo asks for the one of kill(2).
        let result = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.descriptor.as_raw_fd(),
                signal,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Its UDP socket that is bound to `address`, shared with it (`pidfd_getfd(2)`); `None` if there is none.
    ///
    /// # Errors
    /// `EPERM` if this process may not trace it; errors of reading its descriptors in `/proc`.
    pub fn udp_socket(&self, address: SocketAddr) -> io::Result<Option<UdpSocket>> {
        for entry in fs::read_dir(format!("/proc/{}/fd", self.pid))? {
            let entry = entry?;
            let target = fs::read_link(entry.path()).unwrap_or_default();
            let number = entry.file_name().to_str().and_then(|n| n.parse().ok());
            let is_socket = target.to_str().is_some_and(|t| t.starts_with("socket:"));
            let Some(number) = number.filter(|_| is_socket) else {
                continue;
            };
            let socket = match self.duplicate(number) {
                Ok(descriptor) => Socket::from(descriptor),
                // Closed meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::EBADF) => continue,
                Err(error) => return Err(error),
            };
            let bound = socket.local_addr().ok().and_then(|bound| bound.as_socket());
            if bound == Some(address) && socket.r#type().ok() == Some(Type::DGRAM) {
                return Ok(Some(socket.into()));
            }
        }
        Ok(None)
    }

    /// Duplicates one of its descriptors into this process.
    fn duplicate(&self, number: i32) -> io::Result<OwnedFd> {
        let held = self.descriptor.as_raw_fd();
        // SAFETY: takes three integers and gives a new descriptor or -1.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_getfd, held, number, 0) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given this descriptor to us alone; it fits an i32.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
    }

    /// Waits until the process has ended, at most for `timeout`. Returns whether it has.
    ///
    /// Does not reap it: a child's exit status remains for its parent.
    ///
    /// # Errors
    /// Those of `poll(2)`.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let left = deadline.map_or(Duration::MAX, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            match self.poll(left) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(false) if !left.is_zero() => {}
                result => return result,
            }
        }
    }

    fn poll(&self, timeout: Duration) -> io::Result<bool> {
        let mut poll = libc::pollfd {
            fd: self.descriptor.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // Rounded up, so that a wait of less than a millisecond does not turn into a busy loop.
        let milliseconds =
            i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
        // SAFETY: one valid pollfd for the time of the call.
        match unsafe { libc::poll(&raw mut poll, 1, milliseconds) } {
            -1 => Err(io::Error::last_os_error()),
            ready => Ok(ready > 0),
        }
    }
}

/// Runs a closure in a process of its own that shares this one's memory and descriptors, and waits for it.
/// For state that the kernel keeps per process and not per thread, such as the control group (version 2). The
/// calling thread is suspended meanwhile, others go on.
///
/// # Errors
/// The process cannot be created, or it was killed.
///
/// # Panics
/// If `what` panics.
pub fn run_in_child<T: Send, F: FnOnce() -> T + Send>(what: F) -> io::Result<T> {
    let mut task = Task {
        what: Some(what),
        done: None,
    };
    let mut stack = vec![0_u8; STACK_BYTES];
    // The stack grows downwards; its start is aligned as the ABI requires.
    let top = stack.as_mut_ptr_range().end;
    let top = top.wrapping_sub(top.addr() % 16);
    // CLONE_VFORK: this thread resumes when the process has ended or been killed. The two never run at the
    // same time, so that they can share thread-local storage.
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::CLONE_FS;
    // SAFETY: `top` is the end of memory that has no other user and outlives the process, and so
    // does `task`, of which `begin` has the type; this thread touches neither before the process is
    // over. `begin` does not unwind.
    let pid = unsafe {
        libc::clone(
            begin::<T, F>,
            top.cast::<c_void>(),
            flags | libc::SIGCHLD,
            (&raw mut task).cast::<c_void>(),
        )
    };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a child that no other thread waits for; its status is not asked for.
    while unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    match task.done {
        Some(Ok(done)) => Ok(done),
        Some(Err(panic)) => resume_unwind(panic),
        None => Err(io::Error::other("the process was killed")),
    }
}

/// The closure of [`run_in_child`], and its result.
struct Task<T, F> {
    what: Option<F>,
    done: Option<thread::Result<T>>,
}

extern "C" fn begin<T, F: FnOnce() -> T>(task: *mut c_void) -> c_int {
    // SAFETY: `run_in_child` gives one of this type, which it leaves alone until this process is over.
    let task = unsafe { &mut *task.cast::<Task<T, F>>() };
    if let Some(what) = task.what.take() {
        task.done = Some(catch_unwind(AssertUnwindSafe(what)));
    }
    0
}

/// Clone flags of a process of [`run_in_child`]: those of a thread.
const STACK_BYTES: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_closure_runs_in_another_process_with_the_same_memory() {
        let mut list = vec![1];
        let pid = run_in_child(|| {
            list.extend(2..1000);
            // Threads that it starts belong to that process, too.
            thread::scope(|scope| scope.spawn(std::process::id).join().unwrap())
        });
        assert_ne!(pid.unwrap(), std::process::id());
        assert_eq!(list.len(), 999);
        let panicked = catch_unwind(|| run_in_child(|| -> u32 { panic!("apart") }));
        let panic = panicked.unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"apart"));
        // A killed process returns nothing.
        let killed: io::Result<()> = run_in_child(|| {
            let own = PidFd::open(std::process::id() as i32).unwrap();
            own.signal(SIGKILL).unwrap();
            loop {
                thread::yield_now();
            }
        });
        assert!(killed.is_err());
    }

    #[test]
    fn a_udp_socket_of_a_process_is_found_by_its_address() {
        let own = PidFd::open(std::process::id() as i32).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        // A TCP socket at the same port does not count.
        let _listener = std::net::TcpListener::bind(address);
        let shared = own.udp_socket(address).unwrap().unwrap();
        shared.set_nonblocking(true).unwrap();
        // One open file, two descriptors.
        let error = socket.recv(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop((socket, shared));
        assert!(own.udp_socket(address).unwrap().is_none());
    }

    #[test]
    fn the_end_of_a_signalled_child_is_detected() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = PidFd::open(child.id() as i32).unwrap();
        assert!(!process.wait(Duration::ZERO).unwrap());
        process.signal(SIGKILL).unwrap();
        assert!(process.wait(Duration::from_secs(10)).unwrap());
        child.wait().unwrap();
        assert!(process.signal(SIGKILL).is_err());
    }
}
