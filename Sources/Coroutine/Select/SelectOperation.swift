/// One kind of operation that a select can perform: receive, send, await, lock, acquire.
///
/// An object takes part in selects by implementing this. It has one ``SpinLock``, and under it the ``WaitQueue`` in
/// which the operation waits. A select relies only on the rules of Waiter.swift:
/// - The object claims a wait under its lock, through a waiter that it has unlinked, with `waiter.pointee.reason`.
/// - It skips a waiter whose claim fails.
/// - It wakes after it has left the lock (`WaitQueue.claimFirst` and `waiter.wake()` do exactly that).
///
/// While a select's waiter is queued, the thread that claims it commits the operation, as for any other waiter of the
/// object. It does not see that the waiter is a select's.
///
/// If waiters carry a value (an element, a number of permits), all waiters of the object are ``ValueWaiter``s. A
/// select's value is in the five words that its case started with, unless `prepare` stores another address.
///
/// The select locks, queues, parks and unlinks. A committed operation stays committed: neither an error of the body nor
/// a cancellation of the job undoes it. Lock+Select.swift has examples.
@usableFromInline
protocol SelectOperation {
  associatedtype Target: AnyObject
  /// The type of the argument of the body.
  associatedtype Output

  /// Called before any lock is taken, once, if the case says so (`needsPreparation`). May run foreign code.
  static func prepare(_ target: Target, _ waiter: SelectWaiterRef)

  /// Called in place of `prepare` if the select will not wait, or prefers the first case that is ready.
  ///
  /// What the attempt answers then counts, so it must not be out of date.
  static func prepareToDecide(_ target: Target, _ waiter: SelectWaiterRef)

  /// Commits the operation if that needs no wait.
  ///
  /// Called under the lock of the object, and those of other objects: runs no foreign code, takes no other lock, wakes
  /// no waiter.
  static func attempt(_ target: Target, _ waiter: SelectWaiterRef) -> SelectAnswer

  /// Makes the room that an attempt has found missing, without any lock.
  static func makeRoom(_ target: Target, _ waiter: SelectWaiterRef)

  /// Returns the argument of the body, or throws an error instead, after the operation has committed.
  ///
  /// `attempt` has committed it, or the thread that claimed the waiter. No lock is held.
  static func finish(_ target: Target, _ waiter: SelectWaiterRef) throws -> Output

  /// Called at the end, once after `prepare`, also for an unselected case. May run foreign code.
  static func dispose(_ target: Target, _ waiter: SelectWaiterRef)
}

extension SelectOperation {
  @inlinable
  static func prepare(_ target: Target, _ waiter: SelectWaiterRef) {}
  @inlinable
  static func prepareToDecide(_ target: Target, _ waiter: SelectWaiterRef) { prepare(target, waiter) }
  @inlinable
  static func dispose(_ target: Target, _ waiter: SelectWaiterRef) {}
  @inlinable
  static func makeRoom(_ target: Target, _ waiter: SelectWaiterRef) {}
}

/// The result of an attempt: no; yes; yes and a waiter whose wait it has claimed, to wake after the locks are left; or
/// not yet, because memory must be allocated outside the locks.
@usableFromInline
struct SelectAnswer {
  @usableFromInline let word: UInt

  @inlinable
  init(_ word: UInt) { self.word = word }

  @inlinable static var no: SelectAnswer { SelectAnswer(0) }
  @inlinable static var yes: SelectAnswer { SelectAnswer(1) }
  @inlinable static var needsRoom: SelectAnswer { SelectAnswer(2) }
  @inlinable
  static func yes(waking waiter: UnsafeMutablePointer<Waiter>?) -> SelectAnswer {
    SelectAnswer(max(1, UInt(bitPattern: waiter)))
  }

  @inlinable @inline(__always)
  func wake() { if word > 1 { UnsafeMutablePointer<Waiter>(bitPattern: word).unsafelyUnwrapped.wake() } }
}

/// The function of an operation to call.
///
/// `finish` runs the body too.
@usableFromInline
enum SelectStep: UInt8, Sendable { case prepare, prepareToDecide, attempt, makeRoom, dispose, finish }

/// The functions of an operation and of its body, without their types: one function that captures nothing, so that
/// creating it allocates nothing.
///
/// Only `finish` throws, and initialises the memory for the body's result.
@usableFromInline
typealias SelectOperate = (SelectStep, SelectWaiterRef, UnsafeMutableRawPointer) throws -> SelectAnswer

/// Such a function in a struct, which keeps its calling convention fixed when it is stored or converted (SelectBody).
@usableFromInline
struct SelectFunction {
  @usableFromInline let call: SelectOperate
  @inlinable @inline(__always)
  init(_ call: @escaping SelectOperate) { self.call = call }
}

/// The address of a case in a running select.
@usableFromInline typealias SelectWaiterRef = UnsafeMutablePointer<SelectWaiter>

extension SelectOperation {
  @inlinable @inline(__always)
  static func perform(_ step: SelectStep, _ waiter: SelectWaiterRef) -> SelectAnswer {
    waiter.target(Target.self)._withUnsafeGuaranteedRef { target in
      switch step {
      case .attempt: return attempt(target, waiter)
      case .prepare: prepare(target, waiter)
      case .prepareToDecide: prepareToDecide(target, waiter)
      case .makeRoom: makeRoom(target, waiter)
      case .dispose: dispose(target, waiter)
      case .finish: break
      }
      return .yes
    }
  }
}

extension SelectWaiterRef {
  /// Calls the function of the case.
  ///
  /// A function in memory is retained for a call, although the case holds it. Usually it has captured nothing, so there
  /// is nothing to retain; unspecialised code captures its types.
  @inlinable @inline(__always)
  func operate(_ step: SelectStep, _ result: UnsafeMutableRawPointer) throws -> SelectAnswer {
    // Sound because a function value is a code pointer and a context pointer, and has no context if that is 0.
    let words = withUnsafePointer(to: pointee.source.pointee.operate) {
      UnsafeRawPointer($0).assumingMemoryBound(to: (code: UInt, context: UInt).self).pointee
    }
    if words.context == 0 {
      return try unsafeBitCast((code: words.code, context: UInt(0)), to: SelectFunction.self).call(step, self, result)
    }
    return try pointee.source.pointee.operate.call(step, self, result)
  }

  @inlinable var waiter: UnsafeMutablePointer<Waiter> {
    @inline(__always) get { UnsafeMutableRawPointer(self).assumingMemoryBound(to: Waiter.self) }
  }

  /// The target, which the case holds: `target` is the first field of the case.
  @inlinable @inline(__always)
  func target<Target: AnyObject>(_ type: Target.Type) -> Unmanaged<Target> {
    UnsafeRawPointer(pointee.source).assumingMemoryBound(to: Unmanaged<Target>.self).pointee
  }
}
