//! Who may use a local socket.

use keiro_linux::unix::{PeerCredentials, effective_uid};

/// Root, the gateway's own user, or a member of the group that owns the socket.
///
/// The socket's mode says the same to the kernel; asked again, so that a mode changed by mistake
/// does not open the gateway.
pub(crate) fn is_allowed(client: &PeerCredentials, group: Option<u32>) -> bool {
    client.uid == 0
        || client.uid == effective_uid()
        || group.is_some_and(|group| client.is_member(group))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(uid: u32, gid: u32, groups: &[u32]) -> PeerCredentials {
        PeerCredentials {
            pid: 1,
            uid,
            gid,
            groups: groups.to_vec(),
        }
    }

    #[test]
    fn clients_outside_the_group_are_refused() {
        let own = effective_uid();
        assert!(is_allowed(&client(0, 0, &[]), None));
        assert!(is_allowed(&client(own, 9, &[]), None));
        let stranger = own + 54_321;
        assert!(!is_allowed(&client(stranger, 7, &[8]), None));
        assert!(!is_allowed(&client(stranger, 7, &[8]), Some(9)));
        assert!(is_allowed(&client(stranger, 7, &[8]), Some(7)));
        assert!(is_allowed(&client(stranger, 7, &[8]), Some(8)));
    }
}
