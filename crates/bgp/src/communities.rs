//! Communities (RFC 1997) and large communities (RFC 8092) in rules: what they match, remove and add.

use crate::attributes::Attributes;

/// A community.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Community {
    Standard(u32),
    Large([u32; 3]),
}

/// Some communities. A part that is `None` is any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommunityPattern {
    Standard(u16, Option<u16>),
    /// The AS, and both parts of its data.
    Large(u32, [Option<u32>; 2]),
}

/// What a rule does to the communities of a route: removes, then adds.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommunityChanges {
    pub remove: Vec<CommunityPattern>,
    pub add: Vec<Community>,
}

impl CommunityPattern {
    /// Whether a route has one of them.
    pub(crate) fn is_of(&self, attributes: &Attributes) -> bool {
        match self {
            Self::Standard(..) => attributes
                .communities
                .iter()
                .any(|it| self.has_standard(*it)),
            Self::Large(..) => attributes.large.iter().any(|it| self.has_large(*it)),
        }
    }

    fn has_standard(&self, community: u32) -> bool {
        let Self::Standard(asn, value) = *self else {
            return false;
        };
        let [high, low] = [(community >> 16) as u16, community as u16];
        asn == high && value.is_none_or(|value| value == low)
    }

    fn has_large(&self, [of, first, second]: [u32; 3]) -> bool {
        let Self::Large(asn, [one, two]) = *self else {
            return false;
        };
        asn == of && one.is_none_or(|one| one == first) && two.is_none_or(|two| two == second)
    }
}

impl CommunityChanges {
    pub(crate) fn apply(&self, attributes: &mut Attributes) {
        let removes = |has: &dyn Fn(&CommunityPattern) -> bool| self.remove.iter().any(has);
        let standard = attributes.communities.iter().copied();
        let standard = standard.filter(|it| !removes(&|pattern| pattern.has_standard(*it)));
        let large = attributes.large.iter().copied();
        let large = large.filter(|it| !removes(&|pattern| pattern.has_large(*it)));
        let (mut standard, mut large): (Vec<u32>, Vec<[u32; 3]>) =
            (standard.collect(), large.collect());
        for added in &self.add {
            match *added {
                Community::Standard(it) if !standard.contains(&it) => standard.push(it),
                Community::Large(it) if !large.contains(&it) => large.push(it),
                Community::Standard(_) | Community::Large(_) => {}
            }
        }
        (attributes.communities, attributes.large) = (standard.into(), large.into());
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn community_changes_remove_before_they_add() {
        let mut attributes = Attributes::local(IpAddr::from([192, 0, 2, 1]));
        attributes.communities = [65000 << 16 | 1, 65000 << 16 | 2, 65001 << 16 | 1].into();
        attributes.large = [[65000, 1, 2], [65000, 3, 4], [70000, 1, 2]].into();
        let standard = |asn, value| CommunityPattern::Standard(asn, value);
        let large = |asn, data| CommunityPattern::Large(asn, data);
        for (pattern, expected) in [
            (standard(65000, Some(2)), true),
            (standard(65000, Some(3)), false),
            (standard(65001, None), true),
            (standard(65002, None), false),
            (large(65000, [Some(3), Some(4)]), true),
            (large(65000, [Some(3), Some(2)]), false),
            (large(70000, [None, Some(2)]), true),
            (large(70001, [None, None]), false),
        ] {
            assert_eq!(pattern.is_of(&attributes), expected, "{pattern:?}");
        }
        let changes = CommunityChanges {
            remove: vec![standard(65000, None), large(65000, [Some(1), None])],
            add: vec![
                Community::Standard(65000 << 16 | 2),
                Community::Standard(65001 << 16 | 1),
                Community::Large([65000, 1, 9]),
            ],
        };
        changes.apply(&mut attributes);
        assert_eq!(
            attributes.communities[..],
            [65001 << 16 | 1, 65000 << 16 | 2]
        );
        assert_eq!(
            attributes.large[..],
            [[65000, 3, 4], [70000, 1, 2], [65000, 1, 9]]
        );
    }
}
