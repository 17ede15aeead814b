//! A template as a tree. Chains (`a + b + c`, `x.y[0]|f`) are lists, so that the depth of the tree is the depth of
//! nesting in the source, which the parser bounds.

use std::sync::Arc;

/// A name, as its place in [`Program::names`].
pub(super) type Name = u32;

/// A compiled template.
#[derive(Debug, Default)]
pub(super) struct Program {
    pub(super) body: Vec<Statement>,
    pub(super) names: Vec<Arc<str>>,
    /// Bodies that are called: macros, the bodies of `call` and `generation`.
    pub(super) functions: Vec<Callable>,
    pub(super) loops: Vec<For>,
    /// Whether there is a `generation` block.
    pub(super) marks: bool,
}

/// A statement and the line it begins on.
#[derive(Debug)]
pub(super) struct Statement {
    pub(super) line: u32,
    pub(super) kind: StatementKind,
}

#[derive(Debug)]
pub(super) enum StatementKind {
    Data(String),
    Print(Expression),
    If {
        branches: Vec<(Expression, Vec<Statement>)>,
        otherwise: Vec<Statement>,
    },
    /// A loop of [`Program::loops`].
    For(usize),
    Break,
    Continue,
    Set {
        target: Target,
        value: Expression,
    },
    SetBlock {
        target: Target,
        filters: Vec<Step>,
        body: Vec<Statement>,
    },
    With {
        bindings: Vec<(Target, Expression)>,
        body: Vec<Statement>,
    },
    /// A macro of [`Program::functions`], bound to its name.
    Macro {
        name: Name,
        function: usize,
    },
    Call {
        call: Expression,
        function: usize,
    },
    Generation {
        function: usize,
    },
    FilterBlock {
        filters: Vec<Step>,
        body: Vec<Statement>,
    },
    /// A named block without inheritance: its body, with the variables of the template alone.
    Block(Vec<Statement>),
    /// A block that only a template which inherits this one can fill. No template inherits here, so the rendering
    /// ends with an error.
    RequiredBlock(Name),
    /// Statements in a scope of their own.
    Scope(Vec<Statement>),
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) items: Expression,
    pub(super) test: Option<Expression>,
    pub(super) recursive: bool,
    pub(super) body: Vec<Statement>,
    pub(super) otherwise: Vec<Statement>,
}

#[derive(Debug, Default)]
pub(super) struct Callable {
    /// The macro's name; `None` for the body of a block.
    pub(super) name: Option<String>,
    /// Parameters, each with its default.
    pub(super) parameters: Vec<(Name, Option<Expression>)>,
    pub(super) body: Vec<Statement>,
    pub(super) uses_caller: bool,
    pub(super) uses_varargs: bool,
    pub(super) uses_kwargs: bool,
}

/// Left of an assignment.
#[derive(Debug)]
pub(super) enum Target {
    Name(Name),
    /// `namespace.attribute`.
    Attribute(Name, Arc<str>),
    Several(Vec<Target>),
}

#[derive(Debug)]
pub(super) enum Constant {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Arc<str>),
}

#[derive(Debug)]
pub(super) enum Expression {
    Constant(Constant),
    Name(Name),
    List(Vec<Expression>),
    Tuple(Vec<Expression>),
    Dict(Vec<(Expression, Expression)>),
    Not(Box<Expression>),
    Negative(Box<Expression>),
    Positive(Box<Expression>),
    And(Vec<Expression>),
    Or(Vec<Expression>),
    Compare(Box<Expression>, Vec<(Comparison, Expression)>),
    /// Operators of one rank, from left to right.
    Arithmetic(Box<Expression>, Vec<(Operator, Expression)>),
    Concat(Vec<Expression>),
    Condition {
        test: Box<Expression>,
        then: Box<Expression>,
        otherwise: Option<Box<Expression>>,
    },
    /// A value and the operations on it, from left to right.
    Chain(Box<Expression>, Vec<Step>),
}

/// One operation on the value of the steps before it.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) line: u32,
    pub(super) kind: StepKind,
}

#[derive(Debug)]
pub(super) enum StepKind {
    Attribute(Arc<str>),
    Item(Expression),
    Slice(Box<[Option<Expression>; 3]>),
    Call(Arguments),
    Filter(Arc<str>, Arguments),
    Test { name: Arc<str>, arguments: Arguments, negated: bool },
}

impl Callable {
    /// A name for faults.
    pub(super) fn title(&self) -> &str {
        self.name.as_deref().unwrap_or("caller")
    }
}

#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Expression>,
    pub(super) named: Vec<(Arc<str>, Expression)>,
    /// `*list` and `**dict`.
    pub(super) spread: Option<Box<Expression>>,
    pub(super) spread_named: Option<Box<Expression>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    Unequal,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    NotIn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
}
