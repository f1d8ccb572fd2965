/// One operation that a select may do, with the body that runs when it has. Made by ``Channel/onReceive(_:)``,
/// ``Channel/onSend(_:_:)``, ``Awaitable/onAwait(_:)`` and their like, evaluated by ``co_select(biased:_:)``. Making one does
/// nothing yet.
///
/// It knows the result's type and no other: the element's type is in functions that capture nothing, made where it was known.
public struct SelectCase<R> {
  /// First, so that a pointer to the case is one to it.
  @usableFromInline var source: SelectSource
  /// Takes the outcome from the node and runs the body.
  @usableFromInline let finish: (SelectNodeRef, SelectBody) throws -> R

  @inlinable
  init(_ source: SelectSource, finish: @escaping (SelectNodeRef, SelectBody) throws -> R) {
    self.source = source
    self.finish = finish
  }

  /// A case whose body gets what the operation yields. `lock` and `queue` lie in `place`.
  @inlinable
  init<Operation: SelectOperation>(
    _ operation: Operation.Type, place: Operation.Place, lock: UnsafePointer<SpinLock>,
    queue: UnsafeMutablePointer<WaitList>, words: InlineArray<4, UInt> = InlineArray(repeating: 0),
    needsPreparation: Bool = false, taking body: @escaping (Operation.Output) throws -> R
  ) {
    source = SelectSource(
      operation, place: place, lock: lock, queue: queue, words: words, needsPreparation: needsPreparation,
      body: SelectBody(taking: body))
    finish = { node, body in
      let output = try Operation.finish(node.place(Operation.Place.self), node)
      return try body.asTaking(Operation.Output.self, R.self)(output)
    }
  }

  /// A case of an operation that yields nothing.
  @inlinable
  init<Operation: SelectOperation>(
    _ operation: Operation.Type, place: Operation.Place, lock: UnsafePointer<SpinLock>,
    queue: UnsafeMutablePointer<WaitList>, words: InlineArray<4, UInt> = InlineArray(repeating: 0),
    needsPreparation: Bool = false, _ body: @escaping () throws -> R
  ) where Operation.Output == Void {
    source = SelectSource(
      operation, place: place, lock: lock, queue: queue, words: words, needsPreparation: needsPreparation,
      body: SelectBody(plain: body))
    finish = { node, body in
      try Operation.finish(node.place(Operation.Place.self), node)
      return try body.asPlain(R.self)()
    }
  }

  /// Is ready when `duration` has passed without another case, counted from the beginning of the wait; zero or less: at
  /// once. Never early.
  @inlinable
  public static func onTimeout(_ duration: Duration, _ body: @escaping () throws -> R) -> SelectCase {
    var source = SelectSource(.timeout, body: SelectBody(plain: body))
    source.words[0] = SelectRun.nanoseconds(duration)
    return SelectCase(source, finish: { try $1.asPlain(R.self)() })
  }

  /// Is taken when no other case is ready, so that the select never waits. Of several, the first.
  @inlinable
  public static func otherwise(_ body: @escaping () throws -> R) -> SelectCase {
    SelectCase(SelectSource(.otherwise, body: SelectBody(plain: body)), finish: { try $1.asPlain(R.self)() })
  }
}

/// What a case consists of, but for the type of its result.
@usableFromInline
struct SelectSource {
  @usableFromInline enum Kind: UInt8, Sendable { case place, timeout, otherwise }

  @usableFromInline let place: AnyObject?
  @usableFromInline let lock: UnsafePointer<SpinLock>?
  @usableFromInline let queue: UnsafeMutablePointer<WaitList>?
  @usableFromInline let operate: SelectOperate
  @usableFromInline let body: SelectBody
  /// What the node's words begin with: what the operation carries, bit by bit, or a timeout in nanoseconds.
  @usableFromInline var words = InlineArray<4, UInt>(repeating: 0)
  /// A value to send that is not just bits.
  @usableFromInline var object: AnyObject?
  @usableFromInline let kind: Kind
  @usableFromInline var needsPreparation = false

  @inlinable @inline(__always)
  init(_ kind: Kind, body: SelectBody) {
    self.kind = kind
    self.body = body
    (place, lock, queue) = (nil, nil, nil)
    operate = { _, _ in .no }
  }

  @inlinable @inline(__always)
  init<Operation: SelectOperation>(
    _ operation: Operation.Type, place: Operation.Place, lock: UnsafePointer<SpinLock>,
    queue: UnsafeMutablePointer<WaitList>, words: InlineArray<4, UInt>, needsPreparation: Bool, body: SelectBody
  ) {
    kind = .place
    self.place = place
    self.lock = lock
    self.queue = queue
    self.body = body
    self.words = words
    self.needsPreparation = needsPreparation
    operate = { Operation.operate($0, $1) }
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
