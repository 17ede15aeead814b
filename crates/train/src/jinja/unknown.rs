//! Finds unknown filters, tests and functions of a template before anything is rendered.
//!
//! Jinja2 refuses an unknown filter or test when it compiles a template, except inside `{% if %}` and `x if y else z`,
//! where it waits until the place is reached: templates use filters there that only some programs have. A loop, a macro
//! or another block inside such a branch is strict again. The same places are strict here.
//!
//! A function is a variable, and Jinja2 finds out when it is called. Here a call that every rendering reaches is
//! refused at once, if nothing in the template assigns the name; other calls wait until they are reached.

use super::checks::is_test;
use super::fault::{Answer, filter_fault, function_fault, test_fault};
use super::filters::is_filter;
use super::interpreter::function_called;
use super::syntax::{
    Arguments, Callable, Expression, Name, Program, Statement, StatementKind, Step, StepKind, Target,
};

/// Finds the first name that is unknown where the template cannot do without it.
pub(super) fn check(program: &Program) -> Answer<()> {
    let assigned = assigned(program);
    Walk { program, assigned }.statements(&program.body, TOP)
}

/// Strictness of a place.
#[derive(Clone, Copy)]
struct Place {
    /// Inside a branch that may not be taken: Jinja2 looks up its names only when it is.
    soft: bool,
    /// Every rendering evaluates this place.
    reached: bool,
}

const TOP: Place = Place { soft: false, reached: true };
/// A place inside a loop, a macro or a block.
const INNER: Place = Place { soft: false, reached: false };

impl Place {
    fn branch(self) -> Place {
        Place { soft: true, reached: false }
    }

    fn maybe(self) -> Place {
        Place { reached: false, ..self }
    }
}

struct Walk<'a> {
    program: &'a Program,
    /// Whether something in the template assigns the name.
    assigned: Vec<bool>,
}

impl Walk<'_> {
    fn statements(&self, body: &[Statement], place: Place) -> Answer<()> {
        body.iter().try_for_each(|statement| {
            self.statement(&statement.kind, place).map_err(|fault| fault.at(statement.line))
        })
    }

    fn statement(&self, kind: &StatementKind, place: Place) -> Answer<()> {
        match kind {
            StatementKind::Data(_)
            | StatementKind::Break
            | StatementKind::Continue
            | StatementKind::RequiredBlock(_) => Ok(()),
            StatementKind::Print(value) | StatementKind::Set { value, .. } => self.expression(value, place),
            StatementKind::If { branches, otherwise } => {
                let branch = place.branch();
                for (at, (test, body)) in branches.iter().enumerate() {
                    self.expression(test, Place { reached: place.reached && at == 0, ..branch })?;
                    self.statements(body, branch)?;
                }
                self.statements(otherwise, branch)
            }
            StatementKind::For(at) => {
                let each = &self.program.loops[*at];
                self.expression(&each.items, place)?;
                each.test.iter().try_for_each(|test| self.expression(test, INNER))?;
                self.statements(&each.body, INNER)?;
                self.statements(&each.otherwise, INNER)
            }
            StatementKind::SetBlock { filters, body, .. } | StatementKind::FilterBlock { filters, body } => {
                self.statements(body, INNER)?;
                self.steps(None, filters, INNER)
            }
            StatementKind::With { bindings, body } => {
                bindings.iter().try_for_each(|(_, value)| self.expression(value, place))?;
                self.statements(body, INNER)
            }
            StatementKind::Macro { function, .. } | StatementKind::Generation { function } => {
                self.function(*function)
            }
            StatementKind::Call { call, function } => {
                self.expression(call, place)?;
                self.function(*function)
            }
            StatementKind::Block(body) | StatementKind::Scope(body) => self.statements(body, INNER),
        }
    }

    fn function(&self, at: usize) -> Answer<()> {
        let Callable { parameters, body, .. } = &self.program.functions[at];
        let mut defaults = parameters.iter().filter_map(|(_, default)| default.as_ref());
        defaults.try_for_each(|default| self.expression(default, INNER))?;
        self.statements(body, INNER)
    }

    fn expression(&self, expression: &Expression, place: Place) -> Answer<()> {
        match expression {
            Expression::Constant(_) | Expression::Name(_) => Ok(()),
            Expression::List(items) | Expression::Tuple(items) | Expression::Concat(items) => {
                items.iter().try_for_each(|item| self.expression(item, place))
            }
            Expression::Dict(pairs) => pairs.iter().try_for_each(|(key, value)| {
                self.expression(key, place)?;
                self.expression(value, place)
            }),
            Expression::Not(value) | Expression::Negative(value) | Expression::Positive(value) => {
                self.expression(value, place)
            }
            Expression::And(items) | Expression::Or(items) => {
                items.iter().enumerate().try_for_each(|(at, item)| {
                    self.expression(item, if at == 0 { place } else { place.maybe() })
                })
            }
            Expression::Compare(first, rest) => {
                self.expression(first, place)?;
                rest.iter().try_for_each(|(_, operand)| self.expression(operand, place.maybe()))
            }
            Expression::Arithmetic(first, rest) => {
                self.expression(first, place)?;
                rest.iter().try_for_each(|(_, operand)| self.expression(operand, place))
            }
            Expression::Condition { test, then, otherwise } => {
                let branch = place.branch();
                self.expression(test, Place { reached: place.reached, ..branch })?;
                self.expression(then, branch)?;
                otherwise.iter().try_for_each(|otherwise| self.expression(otherwise, branch))
            }
            Expression::Chain(first, steps) => {
                self.expression(first, place)?;
                self.steps(Some(first), steps, place)
            }
        }
    }

    fn steps(&self, first: Option<&Expression>, steps: &[Step], place: Place) -> Answer<()> {
        steps.iter().enumerate().try_for_each(|(at, step)| {
            let called = first.filter(|_| at == 0);
            self.step(called, &step.kind, place).map_err(|fault| fault.at(step.line))
        })
    }

    /// Checks one step of a chain such as `f(x).y`; `first` is the expression before it, if this is the first step.
    fn step(&self, first: Option<&Expression>, kind: &StepKind, place: Place) -> Answer<()> {
        match kind {
            StepKind::Attribute(_) => Ok(()),
            StepKind::Item(item) => self.expression(item, place),
            StepKind::Slice(parts) => {
                parts.iter().flatten().try_for_each(|part| self.expression(part, place))
            }
            StepKind::Call(arguments) => {
                if let Some(Expression::Name(name)) = first {
                    self.called(*name, place)?;
                }
                self.arguments(arguments, place)
            }
            StepKind::Filter(name, _) if !place.soft && !is_filter(name) => Err(filter_fault(name)),
            StepKind::Test { name, .. } if !place.soft && !is_test(name) => Err(test_fault(name)),
            StepKind::Filter(_, arguments) | StepKind::Test { arguments, .. } => {
                self.arguments(arguments, place)
            }
        }
    }

    fn called(&self, name: Name, place: Place) -> Answer<()> {
        let text = &self.program.names[name as usize];
        let known = self.assigned[name as usize] || function_called(text).is_some();
        if known || !place.reached { Ok(()) } else { Err(function_fault(text)) }
    }

    fn arguments(&self, arguments: &Arguments, place: Place) -> Answer<()> {
        let named = arguments.named.iter().map(|(_, value)| value);
        let spread = arguments.spread.iter().chain(&arguments.spread_named).map(|value| &**value);
        let mut all = arguments.positional.iter().chain(named).chain(spread);
        all.try_for_each(|value| self.expression(value, place))
    }
}

/// For each name, whether some statement assigns it.
fn assigned(program: &Program) -> Vec<bool> {
    let mut assigned = vec![false; program.names.len()];
    let mut bodies = vec![&program.body];
    for each in &program.loops {
        targeted(&each.target, &mut assigned);
        bodies.extend([&each.body, &each.otherwise]);
    }
    for function in &program.functions {
        function.parameters.iter().for_each(|(name, _)| assigned[*name as usize] = true);
        bodies.push(&function.body);
    }
    while let Some(body) = bodies.pop() {
        for statement in body {
            assigns(&statement.kind, &mut assigned, &mut bodies);
        }
    }
    // Names that a call or the interpreter assigns.
    for (at, name) in program.names.iter().enumerate() {
        assigned[at] |= ["caller", "loop", "self", "varargs", "kwargs"].contains(&&**name);
    }
    assigned
}

fn assigns<'a>(kind: &'a StatementKind, assigned: &mut [bool], bodies: &mut Vec<&'a Vec<Statement>>) {
    match kind {
        StatementKind::Set { target, .. } => targeted(target, assigned),
        StatementKind::SetBlock { target, body, .. } => {
            targeted(target, assigned);
            bodies.push(body);
        }
        StatementKind::With { bindings, body } => {
            for (target, _) in bindings {
                targeted(target, assigned);
            }
            bodies.push(body);
        }
        StatementKind::Macro { name, .. } => assigned[*name as usize] = true,
        StatementKind::If { branches, otherwise } => {
            bodies.extend(branches.iter().map(|(_, body)| body));
            bodies.push(otherwise);
        }
        StatementKind::FilterBlock { body, .. } | StatementKind::Block(body) | StatementKind::Scope(body) => {
            bodies.push(body);
        }
        _ => {}
    }
}

fn targeted(target: &Target, assigned: &mut [bool]) {
    match target {
        Target::Name(name) => assigned[*name as usize] = true,
        Target::Attribute(..) => {}
        Target::Several(targets) => targets.iter().for_each(|target| targeted(target, assigned)),
    }
}
