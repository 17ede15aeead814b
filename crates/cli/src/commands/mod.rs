//! One file for each command, and for each further question that `plan` answers.

pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod dag;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod export;
pub(crate) mod follow;
pub(crate) mod generate;
pub(crate) mod html;
pub(crate) mod intrinsic;
pub(crate) mod layout;
pub(crate) mod max;
pub(crate) mod methods;
pub(crate) mod plan;
pub(crate) mod report;
pub(crate) mod scaling;
pub(crate) mod train;
