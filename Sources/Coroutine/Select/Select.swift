import Synchronization

// A select is one wait with a waiter in the queues of several objects: channels, promises, locks. One claim ends it.
//
//   evaluate        the operands, once, in order
//   lock            every object, in the order of the locks' addresses, each once (LockOrder)
//   tryCases        in random order, or in the given order when biased (AttemptOrder); the first case that is ready
//                   commits. For one that needs memory, leave all locks, make room, lock again, and try all again
//   last resort     if none was ready, the `otherwise` case ends the select
//   enqueueAll      a waiter at every object, in the order of the attempts
//   unlock          every object; start the earliest timeout; park
//   dequeueUnselected
//                   the waiters of unselected cases, each under its object's lock; then the selected case's body runs
//
// Why exactly one case commits
// - A select that tries its cases is running: its wait has not begun and none of its waiters is linked. So no other
//   thread can commit one of its cases, and it commits at most one itself.
// - A select that waits has linked all its waiters with one epoch. A thread that commits one of its cases first claims
//   the epoch, and one claim succeeds.
// - Two selects that could match each other both take the lock of the channel in which they would meet. The first one
//   finds the other's waiter and claims it, or links its own before the other can attempt. Neither claims its own wait,
//   so no two claims have to be made as one.
// - All locks are held from the last tryCases until unlock. So no partner can come between an attempt at an object and
//   the enqueueing there, and `otherwise` is chosen only if at one moment no case was ready.
// - All selects take locks in one order. Other code holds one object's lock at a time and takes none inside it. So no
//   cycle can form.
// - A send and a receive on one channel in one select never meet: while it attempts, its waiters are not linked, and
//   while they are linked, it does not attempt.
//
// Why cases that share a queue are selected equally often: every order of the attempts is equally likely, and whether
// enqueueAll is reached does not depend on the order. So the order is still uniform when the waiters are linked. Of
// several waiters in one queue, the first is claimed, and each is the first equally often.
//
// SelectRun.swift has the passes, and says what an object must implement. Channels do it in Channel+Select.swift, jobs
// and every other Awaitable below. In the code, `target` is the object that a case operates on.
//
// A case that has committed stays committed: a cancellation that comes later does not take the value back, because both
// claim the one wait (Waiter.swift, invariant 2).

/// The waiter of one case while a select runs, on the selecting coroutine's stack.
///
/// `valueWaiter` is the first field, so that a pointer to its waiter leads to the whole. Eight of these, and eight
/// cases, each fit into the 1024 bytes that Swift takes from the stack.
@usableFromInline
struct SelectWaiter {
  /// The waiter with the address of its value: `words`, or the address that `prepare` stores.
  @usableFromInline var valueWaiter: ValueWaiter
  @usableFromInline let kind: SelectSource.Kind
  /// The case that is attempted at this position.
  @usableFromInline var attempted: UInt8 = 0
  /// The case whose object is locked at this position.
  @usableFromInline var locked: UInt8 = 0
  /// The case, which holds the object.
  ///
  /// It outlives the waiter.
  @usableFromInline let source: UnsafePointer<SelectSource>
  @usableFromInline var words: SelectWords

  @inlinable @inline(__always)
  init(_ source: UnsafePointer<SelectSource>, at address: UnsafeMutablePointer<SelectWaiter>, _ index: Int) {
    self.source = source
    kind = source.pointee.kind
    words = source.pointee.words
    // `words` is the last field.
    let storage =
      UnsafeMutableRawPointer(address) + (MemoryLayout<SelectWaiter>.size - MemoryLayout<SelectWords>.size)
    let reason = WakeReason.firstCase &+ UInt8(truncatingIfNeeded: index)
    valueWaiter = ValueWaiter(Waiter(reason: reason), storage: storage)
  }
}

extension Waiter {
  /// Creates a waiter whose job and epoch are not known yet.
  @inlinable
  init(reason: UInt8) { self.reason = reason }
}

/// Waits until one of several operations is ready, performs that one, and runs its body.
///
/// The operations are receiving, sending, awaiting, locking, and timeouts.
///
/// ```swift
/// try co_select {
///   requests.onReceive { handle($0) }
///   if !log.isEmpty { lines.onSend(log[0]) { log.removeFirst() } }
///   quit.onAwait { _ in stop() }
///   .onTimeout(.seconds(1)) { idle() }
/// }
/// ```
///
/// - Exactly one case commits, even against other selects on other threads. The other cases have no effect.
/// - If several cases are ready, one is selected uniformly at random, or the first in order when `biased`. The same
///   holds for cases that wait at the same side of one channel, or for the same lock or promise.
/// - A case that an `if` leaves out is disabled. With an `otherwise` case, the select never waits. Without cases, it
///   waits until it is cancelled. A timeout of zero or less is ready at once.
/// - A closed channel is ready: `onReceive` gets nil, or the channel's cause is thrown; a send throws
///   ``ChannelClosedError``.
/// - The operands are evaluated once, in order, before any case is attempted. The body runs last, when no case is
///   pending any more.
///
/// Suspends unless a case is ready. If the coroutine is cancelled, it throws at once, and no case has committed. Throws
/// ``CoroutineError/notInCoroutine`` outside a coroutine.
///
/// Up to eight cases allocate nothing, with three exceptions. A value to send is boxed if it is larger than four words,
/// or contains references and is not a single object. The memory for a received value larger than four words is
/// allocated. An `Awaitable` that is not the runtime's own is observed anew.
///
/// More than 240 cases throw ``CoroutineError/tooManyCases``, and none commits: let many send into one channel.
@inlinable
@available(*, noasync, message: "await the `value` of a coroutine that does this")
public func co_select<R, Cases: _SelectCases<R>>(
  biased: Bool = false,
  @SelectBuilder<R> _ cases: () throws -> Cases
) throws -> R {
  try Carrier.requireJob().1.checkCancelled()
  if Cases._isFlat {
    return try withUnsafeTemporaryAllocation(of: Cases.self, capacity: 1) { chosen in
      let chosen = chosen.baseAddress.unsafelyUnwrapped
      chosen.initialize(to: try cases())
      let count = chosen.pointee._caseCount
      let table = UnsafeMutableRawPointer(chosen).assumingMemoryBound(to: SelectCase<R>.self)
      defer { end(table, count) }
      return try select(table, count, biased)
    }
  }
  let chosen = try cases()
  let count = chosen._caseCount
  if count == 0 { try SelectRun.waitForCancellation() }
  return try withUnsafeTemporaryAllocation(of: SelectCase<R>.self, capacity: count) { table in
    let table = table.baseAddress.unsafelyUnwrapped
    _ = chosen._putCases(at: table)
    defer { end(table, count) }
    return try select(table, count, biased)
  }
}

/// Ends the cases of a table.
///
/// By their parts, whose type is not generic: a case would be ended through the metadata of its type.
@inlinable @inline(__always)
func end<R>(_ table: UnsafeMutablePointer<SelectCase<R>>, _ count: Int) {
  for index in 0..<count {
    // Sound because a case has no other field.
    UnsafeMutableRawPointer(table + index).assumingMemoryBound(to: SelectSource.self).deinitialize(count: 1)
  }
}

/// Selects among the cases of a table.
@inlinable @inline(__always)
func select<R>(_ table: UnsafeMutablePointer<SelectCase<R>>, _ count: Int, _ biased: Bool) throws -> R {
  try withUnsafeTemporaryAllocation(of: SelectWaiter.self, capacity: count) { waiters in
    let waiters = waiters.baseAddress.unsafelyUnwrapped
    var needsPreparation = false
    for index in 0..<count {
      let source = UnsafeRawPointer(table + index).assumingMemoryBound(to: SelectSource.self)
      (waiters + index).initialize(to: SelectWaiter(source, at: waiters + index, index))
      if source.pointee.needsPreparation { needsPreparation = true }
    }
    let winner = try SelectRun.run(waiters, count, biased, needsPreparation: needsPreparation)
    defer { if needsPreparation { SelectRun.dispose(waiters + winner) } }
    return try withUnsafeTemporaryAllocation(of: R.self, capacity: 1) { result in
      let result = result.baseAddress.unsafelyUnwrapped
      _ = try (waiters + winner).operate(.finish, result)
      return result.move()
    }
  }
}

// MARK: - The builder

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

  /// Adds the case of ``SelectCase/onTimeout(until:_:)``.
  @inlinable
  public consuming func onTimeout(
    until instant: CoroutineClock.Instant,
    _ body: @escaping () throws -> R
  ) -> _SelectPair<R, Self, SelectCase<R>> { _SelectPair(self, SelectCase.onTimeout(until: instant, body)) }

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

// MARK: - Cases

/// One operation that a select can perform, and the body that runs after it.
///
/// Created by ``Channel/onReceive(_:)``, ``Channel/onSend(_:_:)``, ``Awaitable/onAwait(_:)`` and similar functions, and
/// evaluated by ``co_select(biased:_:)``. Creating a case has no effect. It can be used again.
///
/// A function can return cases, for the selects of others:
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/SymbolSnippets.swift -->
/// ```swift
/// private func end(of job: Job<Int>, orAfter time: Duration) -> [SelectCase<Int?>] {
///   [job.onAwait { try $0.get() }, .onTimeout(time) { nil }]
/// }
/// ```
///
/// ```swift
/// let early = try co_select { for each in end(of: job, orAfter: .seconds(1)) { each } }
/// ```
public struct SelectCase<R> {
  /// The case without its types, which are in a function that captures nothing, created where they were known.
  @usableFromInline var source: SelectSource

  @inlinable @inline(__always)
  init(_ source: SelectSource) { self.source = source }

  /// Creates a case whose body gets the operation's result.
  ///
  /// Every body gets it as `sending`, which costs nothing: a conversion between the two would allocate a closure.
  /// `lock` and `queue` are parts of `target`.
  @inlinable
  init<Operation: SelectOperation>(
    _ operation: Operation.Type,
    target: Operation.Target,
    lock: UnsafePointer<SpinLock>,
    queue: UnsafeMutablePointer<WaitQueue>,
    words: SelectWords = InlineArray(repeating: 0),
    needsPreparation: Bool = false,
    taking body: @escaping (sending Operation.Output) throws -> R
  ) {
    let erased = SelectBody(taking: body)
    source = SelectSource(target, lock, queue, words, needsPreparation, erased) { step, waiter, result in
      guard step == .finish else { return Operation.perform(step, waiter) }
      // Sound because the operation was performed for this body: a value that it took has no other owner.
      nonisolated(unsafe) let output = try waiter.target(Operation.Target.self)._withUnsafeGuaranteedRef {
        try Operation.finish($0, waiter)
      }
      let body = waiter.pointee.source.pointee.body.asTaking(Operation.Output.self, R.self)
      result.assumingMemoryBound(to: R.self).initialize(to: try body(output))
      return .yes
    }
  }

  /// Creates a case of an operation without a result.
  @inlinable
  init<Operation: SelectOperation>(
    _ operation: Operation.Type,
    target: Operation.Target,
    lock: UnsafePointer<SpinLock>,
    queue: UnsafeMutablePointer<WaitQueue>,
    words: SelectWords = InlineArray(repeating: 0),
    needsPreparation: Bool = false,
    _ body: @escaping () throws -> R
  ) where Operation.Output == Void {
    let erased = SelectBody(plain: body)
    source = SelectSource(target, lock, queue, words, needsPreparation, erased) { step, waiter, result in
      guard step == .finish else { return Operation.perform(step, waiter) }
      try waiter.target(Operation.Target.self)._withUnsafeGuaranteedRef { try Operation.finish($0, waiter) }
      result.assumingMemoryBound(to: R.self).initialize(to: try waiter.pointee.source.pointee.body.asPlain(R.self)())
      return .yes
    }
  }

  /// Returns a case that is ready when no other case was ready for `duration`, from the beginning of the wait.
  ///
  /// It is ready at once if `duration` is zero or less, and never early. If a select has several, the shortest counts.
  @inlinable
  public static func onTimeout(_ duration: Duration, _ body: @escaping () throws -> R) -> SelectCase {
    var single = SelectCase(.timeout, body)
    single.source.words[0] = SelectRun.nanoseconds(duration)
    return single
  }

  /// Returns a case that is ready when no other case was ready until `instant`.
  ///
  /// For a loop of selects with one end, which each round would otherwise put off. It is ready at once if `instant` has
  /// passed. The time that is left is that of the case's creation.
  @inlinable
  public static func onTimeout(until instant: CoroutineClock.Instant, _ body: @escaping () throws -> R) -> SelectCase {
    onTimeout(co_now.duration(to: instant), body)
  }

  /// Returns a case that is selected if no other case is ready, so that the select never waits.
  ///
  /// If a select has several, the first counts.
  @inlinable
  public static func otherwise(_ body: @escaping () throws -> R) -> SelectCase { SelectCase(.otherwise, body) }

  @inlinable
  init(_ kind: SelectSource.Kind, _ body: @escaping () throws -> R) {
    source = SelectSource(kind, SelectBody(plain: body)) { _, waiter, result in
      result.assumingMemoryBound(to: R.self).initialize(to: try waiter.pointee.source.pointee.body.asPlain(R.self)())
      return .yes
    }
  }
}

/// The data of an operation: five words, so that an optional of four words without references fits with its flag.
@usableFromInline typealias SelectWords = InlineArray<5, UInt>

/// The parts of a case.
@usableFromInline
struct SelectSource {
  @usableFromInline enum Kind: UInt8, Sendable { case operation, timeout, otherwise }

  /// The object of the operation; the first field, so that a pointer to the source is one to it.
  @usableFromInline let target: AnyObject?
  @usableFromInline let lock: UnsafePointer<SpinLock>?
  @usableFromInline let queue: UnsafeMutablePointer<WaitQueue>?
  @usableFromInline let operate: SelectFunction
  @usableFromInline let body: SelectBody
  /// The initial words of the waiter: the data of the operation, bit by bit, or a timeout in nanoseconds.
  @usableFromInline var words: SelectWords
  /// A value to send that is not plain bits.
  @usableFromInline var object: AnyObject?
  @usableFromInline let kind: Kind
  @usableFromInline var needsPreparation: Bool
  /// Fills the last word: cases side by side are a table only if there is no padding behind one.
  @usableFromInline let unused16: UInt16 = 0
  @usableFromInline let unused32: UInt32 = 0

  /// Creates a case that waits for no object.
  @inlinable @inline(__always)
  init(_ kind: Kind, _ body: SelectBody, _ operate: @escaping SelectOperate) {
    (target, lock, queue) = (nil, nil, nil)
    self.kind = kind
    self.body = body
    self.operate = SelectFunction(operate)
    words = InlineArray(repeating: 0)
    needsPreparation = false
  }

  @inlinable @inline(__always)
  init(
    _ target: AnyObject,
    _ lock: UnsafePointer<SpinLock>,
    _ queue: UnsafeMutablePointer<WaitQueue>,
    _ words: SelectWords,
    _ needsPreparation: Bool,
    _ body: SelectBody,
    _ operate: @escaping SelectOperate
  ) {
    kind = .operation
    self.target = target
    self.lock = lock
    self.queue = queue
    self.body = body
    self.operate = SelectFunction(operate)
    self.words = words
    self.needsPreparation = needsPreparation
  }
}

/// A body without its parameter type: the two words of a function value.
///
/// Sound because a function value is a code pointer and a context pointer whatever its type, because the context is
/// retained and released in the same way, and because the function is called only after it was converted to its own
/// type again. The structs with a type keep the calling convention fixed. A plain function type would be wrapped, which
/// allocates.
@usableFromInline
struct SelectBody {
  @usableFromInline let call: () -> Void

  @usableFromInline struct Plain<R> {
    @usableFromInline let call: () throws -> R
    @inlinable
    init(_ call: @escaping () throws -> R) { self.call = call }
  }
  @usableFromInline struct Taking<Input, R> {
    @usableFromInline let call: (sending Input) throws -> R
    @inlinable
    init(_ call: @escaping (sending Input) throws -> R) { self.call = call }
  }

  @inlinable @inline(__always)
  init<R>(plain body: @escaping () throws -> R) { self = unsafeBitCast(Plain(body), to: SelectBody.self) }
  @inlinable @inline(__always)
  init<Input, R>(taking body: @escaping (sending Input) throws -> R) {
    self = unsafeBitCast(Taking(body), to: SelectBody.self)
  }

  @inlinable @inline(__always)
  func asPlain<R>(_ type: R.Type) -> () throws -> R { unsafeBitCast(self, to: Plain<R>.self).call }
  @inlinable @inline(__always)
  func asTaking<Input, R>(_ input: Input.Type, _ type: R.Type) -> (sending Input) throws -> R {
    unsafeBitCast(self, to: Taking<Input, R>.self).call
  }
}

// MARK: - Awaitables

// The case of an Awaitable. Jobs and promises (Promise.swift) take part with their own completion. Every other
// Awaitable settles a completion that is created for the case.

extension Awaitable {
  /// Returns a case for ``co_select(biased:_:)`` that waits for the end.
  ///
  /// Ready when the outcome is known; `body` gets it. If another case is selected, the Awaitable is unchanged.
  public func onAwait<R>(_ body: @escaping (sending Result<Output, any Error>) throws -> R) -> SelectCase<R> {
    let target = ObservedAwaitable(self)
    return SelectCase(
      ObservedAwait<Output>.self,
      target: target,
      lock: target.completion.lockAddress,
      queue: target.completion.waiterAddress,
      needsPreparation: true,
      taking: body
    )
  }
}

extension Job {
  /// Returns a case for ``co_select(biased:_:)`` that waits for the job's end.
  ///
  /// Ready when the job has ended; `body` gets the outcome. Starts a lazy job. If another case is selected, the job is
  /// unchanged. A job that selects its own end never finds the case ready.
  @inlinable
  public func onAwait<R>(_ body: @escaping (sending Result<Success, any Error>) throws -> R) -> SelectCase<R> {
    SelectCase(
      JobAwait<Success>.self,
      target: self,
      lock: completion.lockAddress,
      queue: completion.waiterAddress,
      needsPreparation: true,
      taking: body
    )
  }
}

@usableFromInline
enum JobAwait<Success: Sendable>: SelectOperation {
  @usableFromInline
  static func prepare(_ job: Job<Success>, _ waiter: SelectWaiterRef) { job.start() }
  @inlinable
  static func attempt(_ job: Job<Success>, _ waiter: SelectWaiterRef) -> SelectAnswer {
    job.completion.known.isSettled ? .yes : .no
  }
  @inlinable
  static func finish(_ job: Job<Success>, _ waiter: SelectWaiterRef) -> Result<Success, any Error> {
    job.completion.seenOutcome(as: Success.self)
  }
}

/// An Awaitable that is observed during a select.
///
/// A case may be used twice. Each select observes anew, unless the outcome is known. Within one select, all uses share
/// this object and its one observation, which ends with the first use that is disposed of: by then no case is pending.
private final class ObservedAwaitable<Output: Sendable>: Inspectable, @unchecked Sendable {
  // Sound because the completion guards itself, and only the selecting coroutine touches the observation.
  let completion = CompletionRef.allocate(capacity: 1)
  let observe: (@escaping @Sendable (Result<Output, any Error>) -> Void) -> AwaitableObservation
  @exclusivity(unchecked) var observation: AwaitableObservation?

  init(_ awaitable: some Awaitable<Output>) {
    observe = awaitable.observeToWait
    completion.initialize(to: Completion(for: Output.self))
    checkAddress(completion.waiterAddress, of: &completion.pointee.waiters)
  }

  var waitLock: UnsafePointer<SpinLock> { completion.lockAddress }
  func inspect(_ names: JobNames) -> String { "an Awaitable of \(asWord(Output.self))" }
  func verb(of queue: UInt?) -> String { "await" }

  deinit {
    Inspection.letFinish(self)
    completion.deinitialize(count: 1)
    completion.deallocate()
  }
}

private enum ObservedAwait<Value: Sendable>: SelectOperation {
  static func prepare(_ target: ObservedAwaitable<Value>, _ waiter: SelectWaiterRef) {
    if target.observation == nil, !target.completion.known.isSettled {
      target.observation = target.observe { outcome in
        target.completion.touch()
        switch outcome {
        case .success(let value): _ = target.completion.succeed(value)
        case .failure(let error): _ = target.completion.fail(error)
        }
      }
    }
  }
  static func attempt(_ target: ObservedAwaitable<Value>, _ waiter: SelectWaiterRef) -> SelectAnswer {
    target.completion.known.isSettled ? .yes : .no
  }
  static func finish(_ target: ObservedAwaitable<Value>, _ waiter: SelectWaiterRef) -> Result<Value, any Error> {
    target.completion.seenOutcome(as: Value.self)
  }
  static func dispose(_ target: ObservedAwaitable<Value>, _ waiter: SelectWaiterRef) {
    target.observation.take()?.cancel()
  }
}
