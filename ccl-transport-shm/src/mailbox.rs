//! Passing descriptors: an abstract datagram socket, which vanishes with the process.

use ccl_core::{Error, Rank, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, recvmsg, sendmsg_addr,
    socket_with,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::time::Duration;

/// Token and rank.
const LETTER: usize = 20;

/// A socket at which peers leave their descriptors.
#[derive(Debug)]
pub(crate) struct Mailbox {
    socket: OwnedFd,
    /// Names are public (`/proc/net/unix`); letters that do not begin with the token are thrown away.
    token: u128,
}

impl Mailbox {
    /// Opens the mailbox of the rank that owns this segment.
    pub(crate) fn open(segment: u128, token: u128) -> Result<Mailbox> {
        let failed = |call: &str, e: Errno| {
            Error::system(format!("{call} for passing descriptors"), e, "allow unix sockets (ulimit -n)")
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
            .map_err(|e| failed("socket", e))?;
        bind(&socket, &address(segment).map_err(|e| failed("naming a socket", e))?)
            .map_err(|e| failed("bind", e))?;
        Ok(Mailbox { socket, token })
    }

    /// Sends a descriptor to the mailbox of another segment's owner; false if it is full for now.
    pub(crate) fn post(&self, from: Rank, fd: BorrowedFd<'_>, to: u128, token: u128) -> Result<bool, Errno> {
        let mut letter = [0; LETTER];
        letter[..16].copy_from_slice(&token.to_le_bytes());
        letter[16..].copy_from_slice(&from.to_le_bytes());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [fd];
        let fits = control.push(SendAncillaryMessage::ScmRights(&fds));
        debug_assert!(fits);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg_addr(&self.socket, &address(to)?, &[IoSlice::new(&letter)], &mut control, flags) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Takes the next descriptor out, if one has come.
    pub(crate) fn take(&self) -> Result<Option<(Rank, OwnedFd)>, Errno> {
        loop {
            let mut letter = [0; LETTER + 1];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let received =
                match recvmsg(&self.socket, &mut [IoSliceMut::new(&mut letter)], &mut control, flags) {
                    Ok(received) => received,
                    Err(Errno::AGAIN) => return Ok(None),
                    Err(Errno::INTR) => continue,
                    Err(e) => return Err(e),
                };
            let mut descriptors = control.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            });
            let fd = descriptors.next().and_then(|mut fds| fds.next());
            let (token, rank) = (&letter[..16], &letter[16..LETTER]);
            if let Some(fd) = fd
                && received.bytes == LETTER
                && token == self.token.to_le_bytes()
            {
                let rank = u32::from_le_bytes([rank[0], rank[1], rank[2], rank[3]]);
                return Ok(Some((rank, fd)));
            }
        }
    }

    /// Waits until a letter is there, at most for `limit`.
    pub(crate) fn wait(&self, limit: Duration) {
        let limit = Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
        // Every outcome means "look again".
        let _ = poll(&mut [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)], Some(&limit));
    }
}

fn address(segment: u128) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("rdmaccl-{segment:032x}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_letters_with_the_token_and_a_descriptor_are_taken() {
        let (segment, token) = (crate::transport::random().unwrap(), 7);
        let mailbox = Mailbox::open(segment, token).unwrap();
        let stranger = Mailbox::open(crate::transport::random().unwrap(), 8).unwrap();
        let post = |bytes: &[u8], fd: Option<BorrowedFd<'_>>| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let fds: Vec<_> = fd.into_iter().collect();
            if !fds.is_empty() {
                assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            }
            let (to, flags) = (address(segment).unwrap(), SendFlags::DONTWAIT);
            sendmsg_addr(&stranger.socket, &to, &[IoSlice::new(bytes)], &mut control, flags).unwrap();
        };
        let right = [&token.to_le_bytes()[..], &3_u32.to_le_bytes()].concat();
        let fd = stranger.socket.as_fd();
        post(b"", Some(fd));
        post(&right[..19], Some(fd));
        post(&[&right[..], b"x"].concat(), Some(fd));
        post(&right, None);
        assert!(stranger.post(3, fd, segment, token + 1).unwrap());
        assert!(stranger.post(3, fd, segment, token).unwrap());
        let (rank, _) = mailbox.take().unwrap().unwrap();
        assert_eq!(rank, 3);
        assert!(mailbox.take().unwrap().is_none(), "a letter that is not for us was taken");
    }
}
