/// Builds the cases of a select.
///
/// `if`, `switch` and `for` choose among them; what is absent is disabled.
///
/// The cases are a tree of plain values, whose type says its shape. A block of cases alone is a table as it lies in memory; any
/// other shape is moved into one. No array is allocated.
@resultBuilder
public enum SelectBuilder<R> {
  /// A case.
  @inlinable
  public static func buildExpression(_ single: SelectCase<R>) -> SelectCase<R> { single }
  /// Cases that were made elsewhere.
  @inlinable
  public static func buildExpression(_ cases: [SelectCase<R>]) -> [SelectCase<R>] { cases }
  /// A case and the `.onTimeout` or `.otherwise` on the line below it, which Swift reads as one expression.
  @inlinable
  public static func buildExpression<First: SelectCases<R>, Second: SelectCases<R>>(
    _ cases: SelectPair<R, First, Second>
  ) -> SelectPair<R, First, Second> { cases }
  /// No case.
  @inlinable
  public static func buildBlock() -> [SelectCase<R>] { [] }
  /// The first of a block.
  @inlinable
  public static func buildPartialBlock<First: SelectCases<R>>(first: First) -> First { first }
  /// What came before, and one more.
  @inlinable
  public static func buildPartialBlock<First: SelectCases<R>, Second: SelectCases<R>>(
    accumulated: First,
    next: Second
  ) -> SelectPair<R, First, Second> { SelectPair(accumulated, next) }
  /// An `if` without an `else`.
  @inlinable
  public static func buildOptional<Cases: SelectCases<R>>(_ cases: Cases?) -> SelectEither<R, Cases, [SelectCase<R>]> {
    if let cases { .first(cases) } else { .second([]) }
  }
  /// The first branch of an `if` or `switch`.
  @inlinable
  public static func buildEither<First: SelectCases<R>, Second: SelectCases<R>>(
    first: First
  ) -> SelectEither<R, First, Second> { .first(first) }
  /// The other branch.
  @inlinable
  public static func buildEither<First: SelectCases<R>, Second: SelectCases<R>>(
    second: Second
  ) -> SelectEither<R, First, Second> { .second(second) }
  /// A `for` loop.
  @inlinable
  public static func buildArray<Cases: SelectCases<R>>(_ cases: [Cases]) -> SelectMany<R, Cases> { SelectMany(cases) }
  /// What `co_select` takes.
  ///
  /// Consuming, or each select would copy its cases: a third of its time.
  @inlinable @inline(__always)
  public static func buildFinalResult<Cases: SelectCases<R>>(_ cases: consuming Cases) -> Cases { cases }
  /// An array, where one is wanted: for a function that is marked with the builder.
  @inlinable @_disfavoredOverload
  public static func buildFinalResult<Cases: SelectCases<R>>(_ cases: Cases) -> [SelectCase<R>] {
    Array(unsafeUninitializedCapacity: cases.caseCount) { table, count in
      count = cases.caseCount
      if let start = table.baseAddress { _ = cases.putCases(at: start) }
    }
  }
}

/// Cases of a select, in whatever shape its builder gave them.
///
/// Not for conforming to.
public protocol SelectCases<R> {
  /// What the select returns.
  associatedtype R
  /// Whether a value of this type is nothing but cases side by side in memory, so that it is a table already.
  static var isFlat: Bool { get }
  /// How many there are.
  var caseCount: Int { get }
  /// Initialises memory with them, in order, and returns its end.
  consuming func putCases(at target: UnsafeMutablePointer<SelectCase<R>>) -> UnsafeMutablePointer<SelectCase<R>>
}

extension SelectCases {
  /// Usually not.
  @inlinable public static var isFlat: Bool { false }
}

// A line that begins with a dot belongs to the line above it: below a case, `.onTimeout` is a member of that case. So
// these are members as well, which add the case that the static function of the same name makes.
extension SelectCases {
  /// These cases and ``SelectCase/onTimeout(_:_:)``.
  @inlinable
  public consuming func onTimeout(
    _ duration: Duration,
    _ body: @escaping () throws -> R
  ) -> SelectPair<R, Self, SelectCase<R>> { SelectPair(self, SelectCase.onTimeout(duration, body)) }

  /// These cases and ``SelectCase/otherwise(_:)``.
  @inlinable
  public consuming func otherwise(_ body: @escaping () throws -> R) -> SelectPair<R, Self, SelectCase<R>> {
    SelectPair(self, SelectCase.otherwise(body))
  }
}

extension SelectCase: SelectCases {
  /// Yes, unless there is a gap behind it.
  @inlinable public static var isFlat: Bool { MemoryLayout<Self>.size == MemoryLayout<Self>.stride }
  /// One.
  @inlinable public var caseCount: Int { 1 }
  /// Puts the case.
  @inlinable
  public consuming func putCases(at target: UnsafeMutablePointer<SelectCase<R>>) -> UnsafeMutablePointer<SelectCase<R>>
  {
    target.initialize(to: self)
    return target + 1
  }
}

/// Cases one after another.
public struct SelectPair<R, First: SelectCases<R>, Second: SelectCases<R>>: SelectCases {
  @usableFromInline let first: First
  @usableFromInline let second: Second
  @inlinable
  init(_ first: First, _ second: Second) {
    self.first = first
    self.second = second
  }
  /// The second lies right behind the first, where both are flat.
  @inlinable public static var isFlat: Bool { First.isFlat && Second.isFlat }
  /// The sum.
  @inlinable public var caseCount: Int { first.caseCount + second.caseCount }
  /// Puts the first, then the second.
  @inlinable
  public consuming func putCases(at target: UnsafeMutablePointer<SelectCase<R>>) -> UnsafeMutablePointer<SelectCase<R>>
  {
    second.putCases(at: first.putCases(at: target))
  }
}

/// The cases of one of two branches.
public enum SelectEither<R, First: SelectCases<R>, Second: SelectCases<R>>: SelectCases {
  /// The first branch was taken.
  case first(First)
  /// The other branch was taken.
  case second(Second)

  /// Those of the branch.
  @inlinable public var caseCount: Int {
    switch self {
    case .first(let cases): cases.caseCount
    case .second(let cases): cases.caseCount
    }
  }
  /// Puts those of the branch.
  @inlinable
  public consuming func putCases(at target: UnsafeMutablePointer<SelectCase<R>>) -> UnsafeMutablePointer<SelectCase<R>>
  {
    switch self {
    case .first(let cases): cases.putCases(at: target)
    case .second(let cases): cases.putCases(at: target)
    }
  }
}

/// The cases of a loop.
public struct SelectMany<R, Each: SelectCases<R>>: SelectCases {
  @usableFromInline let each: [Each]
  @inlinable
  init(_ each: [Each]) { self.each = each }
  /// The sum.
  @inlinable public var caseCount: Int { each.reduce(0) { $0 + $1.caseCount } }
  /// Puts those of each round.
  @inlinable
  public consuming func putCases(at target: UnsafeMutablePointer<SelectCase<R>>) -> UnsafeMutablePointer<SelectCase<R>>
  {
    each.reduce(target) { $1.putCases(at: $0) }
  }
}

extension Array: SelectCases where Element: SelectCases {
  /// What the select returns.
  public typealias R = Element.R
  /// The sum.
  @inlinable public var caseCount: Int { reduce(0) { $0 + $1.caseCount } }
  /// Puts those of each element.
  @inlinable
  public consuming func putCases(at target: UnsafeMutablePointer<SelectCase<R>>) -> UnsafeMutablePointer<SelectCase<R>>
  {
    reduce(target) { $1.putCases(at: $0) }
  }
}
