//! Scopes: the names that one loop iteration, macro call or block has assigned.

use std::cell::RefCell;
use std::rc::Rc;

use super::super::syntax::Name;
use super::Value;

/// Names assigned in one place, and the place around it.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    pub(in crate::jinja) assigned: RefCell<Vec<(Name, Value)>>,
    outer: Option<Rc<Scope>>,
}

impl Scope {
    pub(in crate::jinja) fn inside(outer: &Rc<Scope>) -> Rc<Scope> {
        Rc::new(Scope { assigned: RefCell::default(), outer: Some(Rc::clone(outer)) })
    }

    pub(in crate::jinja) fn assign(&self, name: Name, value: Value) {
        let mut assigned = self.assigned.borrow_mut();
        match assigned.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => assigned.push((name, value)),
        }
    }

    pub(in crate::jinja) fn find(&self, name: Name) -> Option<Value> {
        let mut scope = Some(self);
        while let Some(here) = scope {
            if let Some((_, value)) = here.assigned.borrow().iter().find(|(known, _)| *known == name) {
                return Some(value.clone());
            }
            scope = here.outer.as_deref();
        }
        None
    }
}
