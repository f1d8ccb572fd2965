/// Builds the cases of a select.
///
/// `if`, `switch` and `for` choose cases. A case that is left out is disabled.
///
/// The cases are a tree of plain values, and the type of the tree is its shape. A block of cases alone is a table in
/// memory already. Any other shape is moved into a table. No array is allocated.
@resultBuilder
public enum SelectBuilder<R> {
  /// Takes a case.
  @inlinable
  public static func buildExpression(_ single: SelectCase<R>) -> SelectCase<R> { single }
  /// Takes cases that were created elsewhere.
  @inlinable
  public static func buildExpression(_ cases: [SelectCase<R>]) -> [SelectCase<R>] { cases }
  /// Takes a case with the `.onTimeout` or `.otherwise` on the line below it, which Swift reads as one expression.
  @inlinable
  public static func buildExpression<First: _SelectCases<R>, Second: _SelectCases<R>>(
    _ cases: _SelectPair<R, First, Second>
  ) -> _SelectPair<R, First, Second> { cases }
  /// Builds an empty block.
  @inlinable
  public static func buildBlock() -> [SelectCase<R>] { [] }
  /// Starts a block with its first cases.
  @inlinable
  public static func buildPartialBlock<First: _SelectCases<R>>(first: First) -> First { first }
  /// Appends to the cases before.
  @inlinable
  public static func buildPartialBlock<First: _SelectCases<R>, Second: _SelectCases<R>>(
    accumulated: First,
    next: Second
  ) -> _SelectPair<R, First, Second> { _SelectPair(accumulated, next) }
  /// Builds an `if` without an `else`.
  @inlinable
  public static func buildOptional<Cases: _SelectCases<R>>(_ cases: Cases?) -> _SelectEither<R, Cases, [SelectCase<R>]>
  {
    if let cases { .first(cases) } else { .second([]) }
  }
  /// Builds the first branch of an `if` or `switch`.
  @inlinable
  public static func buildEither<First: _SelectCases<R>, Second: _SelectCases<R>>(
    first: First
  ) -> _SelectEither<R, First, Second> { .first(first) }
  /// Builds the other branch.
  @inlinable
  public static func buildEither<First: _SelectCases<R>, Second: _SelectCases<R>>(
    second: Second
  ) -> _SelectEither<R, First, Second> { .second(second) }
  /// Builds a `for` loop.
  @inlinable
  public static func buildArray<Cases: _SelectCases<R>>(_ cases: [Cases]) -> _SelectMany<R, Cases> {
    _SelectMany(cases)
  }
  /// Returns the cases to `co_select`.
  ///
  /// Consuming: a copy of the cases would take a third of each select's time.
  @inlinable @inline(__always)
  public static func buildFinalResult<Cases: _SelectCases<R>>(_ cases: consuming Cases) -> Cases { cases }
  /// Returns an array where one is wanted, for a function that is marked with the builder.
  @inlinable @_disfavoredOverload
  public static func buildFinalResult<Cases: _SelectCases<R>>(_ cases: Cases) -> [SelectCase<R>] {
    Array(unsafeUninitializedCapacity: cases._caseCount) { table, count in
      count = cases._caseCount
      if let start = table.baseAddress { _ = cases._putCases(at: start) }
    }
  }
}

/// The cases of a select, in the shape that the builder gave them.
///
/// Other types must not conform to it.
public protocol _SelectCases<R> {
  /// The type of the select's result.
  associatedtype R
  /// Whether a value of this type consists of cases side by side in memory, and nothing else: a table.
  static var _isFlat: Bool { get }
  /// The number of cases.
  var _caseCount: Int { get }
  /// Initialises memory with the cases, in order, and returns its end.
  consuming func _putCases(at target: UnsafeMutablePointer<SelectCase<R>>) -> UnsafeMutablePointer<SelectCase<R>>
}

extension _SelectCases {
  /// False, unless a shape says otherwise.
  @inlinable public static var _isFlat: Bool { false }
}

// A line that begins with a dot belongs to the line above it: below a case, `.onTimeout` is a member of that case. So
// these are members too, which add the case that the static function of the same name creates.
extension _SelectCases {
  /// Adds the case of ``SelectCase/onTimeout(_:_:)``.
  @inlinable
  public consuming func onTimeout(
    _ duration: Duration,
    _ body: @escaping () throws -> R
  ) -> _SelectPair<R, Self, SelectCase<R>> { _SelectPair(self, SelectCase.onTimeout(duration, body)) }

  /// Adds the case of ``SelectCase/otherwise(_:)``.
  @inlinable
  public consuming func otherwise(_ body: @escaping () throws -> R) -> _SelectPair<R, Self, SelectCase<R>> {
    _SelectPair(self, SelectCase.otherwise(body))
  }
}

extension SelectCase: _SelectCases {
  /// True, unless there is padding behind the case.
  @inlinable public static var _isFlat: Bool { MemoryLayout<Self>.size == MemoryLayout<Self>.stride }
  /// Always one.
  @inlinable public var _caseCount: Int { 1 }
  /// Stores the case.
  @inlinable
  public consuming func _putCases(at target: UnsafeMutablePointer<SelectCase<R>>) -> UnsafeMutablePointer<SelectCase<R>>
  {
    target.initialize(to: self)
    return target + 1
  }
}

/// Two groups of cases, one after the other.
public struct _SelectPair<R, First: _SelectCases<R>, Second: _SelectCases<R>>: _SelectCases {
  @usableFromInline let first: First
  @usableFromInline let second: Second
  @inlinable
  init(_ first: First, _ second: Second) {
    self.first = first
    self.second = second
  }
  /// True if both are flat: then the second lies directly behind the first.
  @inlinable public static var _isFlat: Bool { First._isFlat && Second._isFlat }
  /// The sum of both.
  @inlinable public var _caseCount: Int { first._caseCount + second._caseCount }
  /// Stores the first cases, then the second.
  @inlinable
  public consuming func _putCases(at target: UnsafeMutablePointer<SelectCase<R>>) -> UnsafeMutablePointer<SelectCase<R>>
  {
    second._putCases(at: first._putCases(at: target))
  }
}

/// The cases of one of two branches.
public enum _SelectEither<R, First: _SelectCases<R>, Second: _SelectCases<R>>: _SelectCases {
  /// The first branch was taken.
  case first(First)
  /// The other branch was taken.
  case second(Second)

  /// The number of cases in the branch.
  @inlinable public var _caseCount: Int {
    switch self {
    case .first(let cases): cases._caseCount
    case .second(let cases): cases._caseCount
    }
  }
  /// Stores the cases of the branch.
  @inlinable
  public consuming func _putCases(at target: UnsafeMutablePointer<SelectCase<R>>) -> UnsafeMutablePointer<SelectCase<R>>
  {
    switch self {
    case .first(let cases): cases._putCases(at: target)
    case .second(let cases): cases._putCases(at: target)
    }
  }
}

/// The cases of a loop.
public struct _SelectMany<R, Each: _SelectCases<R>>: _SelectCases {
  @usableFromInline let each: [Each]
  @inlinable
  init(_ each: [Each]) { self.each = each }
  /// The sum over all rounds.
  @inlinable public var _caseCount: Int { each.reduce(0) { $0 + $1._caseCount } }
  /// Stores the cases of each round.
  @inlinable
  public consuming func _putCases(at target: UnsafeMutablePointer<SelectCase<R>>) -> UnsafeMutablePointer<SelectCase<R>>
  {
    each.reduce(target) { $1._putCases(at: $0) }
  }
}

extension Array: _SelectCases where Element: _SelectCases {
  /// The sum over all elements.
  @inlinable public var _caseCount: Int { reduce(0) { $0 + $1._caseCount } }
  /// Stores the cases of each element.
  @inlinable
  public consuming func _putCases(
    at target: UnsafeMutablePointer<SelectCase<Element.R>>
  ) -> UnsafeMutablePointer<SelectCase<Element.R>> {
    reduce(target) { $1._putCases(at: $0) }
  }
}
