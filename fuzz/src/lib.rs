//! What the targets share: a speaker with neighbours that say what an input has them say, and a mirror
//! of our own AS that hears what the speaker tells, and holds it against what it may tell.

pub mod seeds;
pub mod site;
pub mod wire;
