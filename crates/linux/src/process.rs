//! Processes held by a descriptor (`pidfd_open(2)`): signalled, waited for and asked for their sockets without
//! the danger that their number has been given to another process meanwhile. And [`apart`]: something run in
//! another process that has this one's memory.

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

/// Ask a process to end.
pub const SIGTERM: i32 = libc::SIGTERM;
/// End a process; it cannot refuse.
pub const SIGKILL: i32 = libc::SIGKILL;
/// Interrupt, as Ctrl-C does.
pub const SIGINT: i32 = libc::SIGINT;
/// Stop a process where it is; it cannot refuse.
pub const SIGSTOP: i32 = libc::SIGSTOP;
/// Let a stopped process go on.
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
    /// `ESRCH` where there is none.
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

    /// Its number.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends a signal, for example [`SIGTERM`].
    ///
    /// # Errors
    /// `ESRCH` where the process has ended and been reaped.
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

    /// Its UDP socket that is bound to `address`, shared with it (`pidfd_getfd(2)`); `None` if it has none.
    ///
    /// # Errors
    /// `EPERM` where this process may not trace it; those of reading its descriptors in `/proc`.
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

    /// One of its descriptors, in this process.
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

    /// Waits until the process has ended, at most for `timeout`; whether it has.
    ///
    /// It reaps nothing: a child's exit status remains for its parent.
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

/// Runs something in a process of its own with this one's memory and descriptors, and waits for it:
/// for what the kernel keeps by process and not by thread, such as the control group (version 2).
/// The calling thread stands still meanwhile, others go on.
///
/// # Errors
/// There can be no such process, or it was killed.
///
/// # Panics
/// Where `what` does.
pub fn apart<T: Send, F: FnOnce() -> T + Send>(what: F) -> io::Result<T> {
    let mut task = Task {
        what: Some(what),
        done: None,
    };
    let mut stack = vec![0_u8; STACK_BYTES];
    // It grows downwards, and begins where the ABI wants it to.
    let top = stack.as_mut_ptr_range().end;
    let top = top.wrapping_sub(top.addr() % 16);
    // CLONE_VFORK: this thread goes on when the process has ended or been killed. Until then the two
    // are never at work at the same time, so that they may have one thread's local storage.
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

/// What [`apart`] runs, and what comes of it.
struct Task<T, F> {
    what: Option<F>,
    done: Option<thread::Result<T>>,
}

extern "C" fn begin<T, F: FnOnce() -> T>(task: *mut c_void) -> c_int {
    // SAFETY: `apart` gives one of this type, which it leaves alone until this process is over.
    let task = unsafe { &mut *task.cast::<Task<T, F>>() };
    if let Some(what) = task.what.take() {
        task.done = Some(catch_unwind(AssertUnwindSafe(what)));
    }
    0
}

/// Of a process of [`apart`]: what a thread has.
const STACK_BYTES: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_runs_apart_is_another_process_with_the_same_memory() {
        let mut list = vec![1];
        let pid = apart(|| {
            list.extend(2..1000);
            // Threads of it are of that process, too.
            thread::scope(|scope| scope.spawn(std::process::id).join().unwrap())
        });
        assert_ne!(pid.unwrap(), std::process::id());
        assert_eq!(list.len(), 999);
        let panicked = catch_unwind(|| apart(|| -> u32 { panic!("apart") }));
        let panic = panicked.unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"apart"));
        // Who is killed has done nothing.
        let killed: io::Result<()> = apart(|| {
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
        // A TCP socket at the same port is none.
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
    fn signalled_child_is_seen_to_end() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = PidFd::open(child.id() as i32).unwrap();
        assert!(!process.wait(Duration::ZERO).unwrap());
        process.signal(SIGKILL).unwrap();
        assert!(process.wait(Duration::from_secs(10)).unwrap());
        child.wait().unwrap();
        assert!(process.signal(SIGKILL).is_err());
    }
}
