//! What the targets share: a speaker with neighbours that say what an input has them say, and a mirror
//! of our own AS that receives what the speaker sends, and compares it with what may be sent.

pub mod seeds;
pub mod site;
pub mod wire;
