//! One pod's sync: worker (its life), plan (decisions), act (calls).

pub mod worker;
