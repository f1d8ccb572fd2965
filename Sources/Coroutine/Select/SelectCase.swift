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
  /// Fills the last word: cases side by side are a table only if there is no padding behind one (SelectBuilder.swift).
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
