/// One operation that a select may do, with the body that runs when it has.
///
/// Made by ``Channel/onReceive(_:)``, ``Channel/onSend(_:_:)``, ``Awaitable/onAwait(_:)`` and their like, evaluated by
/// ``co_select(biased:_:)``. Making one does nothing yet. It can be used again.
public struct SelectCase<R> {
  /// Knows no types: those are in a function that captures nothing, made where they were known.
  @usableFromInline var source: SelectSource

  @inlinable @inline(__always)
  init(_ source: SelectSource) { self.source = source }

  /// A case whose body gets what the operation yields.
  ///
  /// `lock` and `queue` lie in `place`.
  @inlinable
  init<Operation: SelectOperation>(
    _ operation: Operation.Type,
    place: Operation.Place,
    lock: UnsafePointer<SpinLock>,
    queue: UnsafeMutablePointer<WaitQueue>,
    words: SelectWords = InlineArray(repeating: 0),
    needsPreparation: Bool = false,
    taking body: @escaping (Operation.Output) throws -> R
  ) {
    source = SelectSource(place, lock, queue, words, needsPreparation, SelectBody(taking: body)) { step, waiter, result in
      guard step == .finish else { return Operation.perform(step, waiter) }
      let output = try waiter.place(Operation.Place.self)._withUnsafeGuaranteedRef { try Operation.finish($0, waiter) }
      let body = waiter.pointee.source.pointee.body.asTaking(Operation.Output.self, R.self)
      result.assumingMemoryBound(to: R.self).initialize(to: try body(output))
      return .yes
    }
  }

  /// A case of an operation that yields nothing.
  @inlinable
  init<Operation: SelectOperation>(
    _ operation: Operation.Type,
    place: Operation.Place,
    lock: UnsafePointer<SpinLock>,
    queue: UnsafeMutablePointer<WaitQueue>,
    words: SelectWords = InlineArray(repeating: 0),
    needsPreparation: Bool = false,
    _ body: @escaping () throws -> R
  ) where Operation.Output == Void {
    source = SelectSource(place, lock, queue, words, needsPreparation, SelectBody(plain: body)) { step, waiter, result in
      guard step == .finish else { return Operation.perform(step, waiter) }
      try waiter.place(Operation.Place.self)._withUnsafeGuaranteedRef { try Operation.finish($0, waiter) }
      result.assumingMemoryBound(to: R.self).initialize(to: try waiter.pointee.source.pointee.body.asPlain(R.self)())
      return .yes
    }
  }

  /// Is ready when `duration` has passed without another case, counted from the beginning of the wait; zero or less: at
  /// once.
  ///
  /// Never early. In a select with several, the shortest counts.
  @inlinable
  public static func onTimeout(_ duration: Duration, _ body: @escaping () throws -> R) -> SelectCase {
    var single = SelectCase(.timeout, body)
    single.source.words[0] = SelectRun.nanoseconds(duration)
    return single
  }

  /// Is taken when no other case is ready, so that the select never waits.
  ///
  /// Of several, the first.
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

/// What an operation carries: five words, so that an optional of four words of bits fits with its flag.
@usableFromInline typealias SelectWords = InlineArray<5, UInt>

/// What a case consists of.
@usableFromInline
struct SelectSource {
  @usableFromInline enum Kind: UInt8, Sendable { case place, timeout, otherwise }

  /// First, so that a pointer to the source is one to it.
  @usableFromInline let place: AnyObject?
  @usableFromInline let lock: UnsafePointer<SpinLock>?
  @usableFromInline let queue: UnsafeMutablePointer<WaitQueue>?
  @usableFromInline let operate: SelectOperate
  @usableFromInline let body: SelectBody
  /// What the node's words begin with: what the operation carries, bit by bit, or a timeout in nanoseconds.
  @usableFromInline var words: SelectWords
  /// A value to send that is not just bits.
  @usableFromInline var object: AnyObject?
  @usableFromInline let kind: Kind
  @usableFromInline var needsPreparation: Bool
  /// Fills the last word: cases side by side are a table only if there is no gap behind one (SelectBuilder.swift).
  @usableFromInline let unused16: UInt16 = 0
  @usableFromInline let unused32: UInt32 = 0

  /// Of a case that waits in no place.
  @inlinable @inline(__always)
  init(_ kind: Kind, _ body: SelectBody, _ operate: @escaping SelectOperate) {
    (place, lock, queue) = (nil, nil, nil)
    self.kind = kind
    self.body = body
    self.operate = operate
    words = InlineArray(repeating: 0)
    needsPreparation = false
  }

  @inlinable @inline(__always)
  init(
    _ place: AnyObject,
    _ lock: UnsafePointer<SpinLock>,
    _ queue: UnsafeMutablePointer<WaitQueue>,
    _ words: SelectWords,
    _ needsPreparation: Bool,
    _ body: SelectBody,
    _ operate: @escaping SelectOperate
  ) {
    kind = .place
    self.place = place
    self.lock = lock
    self.queue = queue
    self.body = body
    self.operate = operate
    self.words = words
    self.needsPreparation = needsPreparation
  }
}

/// A body whose parameter type is forgotten: the two words of a function value.
///
/// Sound because a function value is a code and a context pointer whatever its type, the context is retained and released
/// in the same way, and it is called only after it has been given its own type back. The type-carrying structs keep the
/// calling convention fixed where a bare function type would be wrapped, which allocates.
@usableFromInline
struct SelectBody {
  @usableFromInline let call: () -> Void

  @usableFromInline struct Plain<R> {
    @usableFromInline let call: () throws -> R
    @inlinable
    init(_ call: @escaping () throws -> R) { self.call = call }
  }
  @usableFromInline struct Taking<Input, R> {
    @usableFromInline let call: (Input) throws -> R
    @inlinable
    init(_ call: @escaping (Input) throws -> R) { self.call = call }
  }

  @inlinable @inline(__always)
  init<R>(plain body: @escaping () throws -> R) { self = unsafeBitCast(Plain(body), to: SelectBody.self) }
  @inlinable @inline(__always)
  init<Input, R>(taking body: @escaping (Input) throws -> R) { self = unsafeBitCast(Taking(body), to: SelectBody.self) }

  @inlinable @inline(__always)
  func asPlain<R>(_ type: R.Type) -> () throws -> R { unsafeBitCast(self, to: Plain<R>.self).call }
  @inlinable @inline(__always)
  func asTaking<Input, R>(_ input: Input.Type, _ type: R.Type) -> (Input) throws -> R {
    unsafeBitCast(self, to: Taking<Input, R>.self).call
  }
}
