/// One kind of operation that a select may do: to receive, to send, to await, to lock, to acquire.
///
/// All that a place must implement to take part in selects.
///
/// A place is an object with one ``SpinLock`` and, under it, the ``WaitQueue`` in which the operation waits. What it must do
/// anyway, by the rules of Waiter.swift, is what a select relies on: it claims a wait under its lock, through a node that it
/// has unlinked, with `waiter.pointee.reason`; it skips a node whose claim fails; and it wakes after leaving the lock
/// (`WaitQueue.claimFirst` and `waiter.wake()` do just that). While a select's node is queued, to commit its operation is the
/// business of whoever claims it, as for any other waiter of the place: it does not see that it is a select's.
///
/// Where waiters carry something (a value, a number of permits), all nodes of the place are ``ValueWaiter``s. A select's slot is
/// the five words that its case began with, unless `prepare` makes it lead elsewhere.
///
/// ```swift
/// enum Acquisition: SelectOperation {
///   static func attempt(_ place: FairSemaphore, _ node: SelectWaiterRef) -> SelectAnswer {
///     place.take(Int(node.words[0])) ? .yes : .no
///   }
///   static func finish(_ place: FairSemaphore, _ node: SelectWaiterRef) {}
/// }
/// SelectCase(Acquisition.self, place: self, lock: lockAddress, queue: queueAddress, words: [UInt(permits), 0, 0, 0, 0], body)
/// ```
///
/// Locking, queueing, parking and unlinking are the select's. A committed operation stays committed: the body's throw, or the
/// job's cancellation, undoes nothing.
@usableFromInline
protocol SelectOperation {
  associatedtype Place: AnyObject
  /// What the body gets.
  associatedtype Output

  /// Before any lock, once, where the case says so (`needsPreparation`). Foreign code may run.
  static func prepare(_ place: Place, _ waiter: SelectWaiterRef)

  /// Commits the operation if that needs no waiting. Under the place's lock, and those of other places: no foreign code, no
  /// other lock, nobody is woken.
  static func attempt(_ place: Place, _ waiter: SelectWaiterRef) -> SelectAnswer

  /// After the operation has committed, by `attempt` or by whoever claimed the node: what the body gets, or an error instead
  /// of it. No lock is held.
  static func finish(_ place: Place, _ waiter: SelectWaiterRef) throws -> Output

  /// When all is over, once after `prepare`, also for a case that lost. Foreign code may run.
  static func dispose(_ place: Place, _ waiter: SelectWaiterRef)
}

extension SelectOperation {
  @inlinable
  static func prepare(_ place: Place, _ waiter: SelectWaiterRef) {}
  @inlinable
  static func dispose(_ place: Place, _ waiter: SelectWaiterRef) {}
}

/// What an attempt answers: no; yes; or yes, and whom to wake when the locks are left (a node whose wait it has claimed).
@usableFromInline
struct SelectAnswer {
  @usableFromInline let word: UInt

  @inlinable
  init(_ word: UInt) { self.word = word }

  @inlinable static var no: SelectAnswer { SelectAnswer(0) }
  @inlinable static var yes: SelectAnswer { SelectAnswer(1) }
  @inlinable
  static func yes(waking waiter: UnsafeMutablePointer<Waiter>?) -> SelectAnswer {
    SelectAnswer(max(1, UInt(bitPattern: waiter)))
  }

  @inlinable @inline(__always)
  func wake() { if word > 1 { UnsafeMutablePointer<Waiter>(bitPattern: word).unsafelyUnwrapped.wake() } }
}

/// Which of an operation's functions is called.
///
/// `finish` runs the body as well.
@usableFromInline
enum SelectStep: UInt8, Sendable { case prepare, attempt, dispose, finish }

/// An operation and the type of its body, forgotten: one function that captures nothing, so that making it allocates
/// nothing.
///
/// Only `finish` throws, and initialises the memory for the body's result.
@usableFromInline typealias SelectOperate = (SelectStep, SelectWaiterRef, UnsafeMutableRawPointer) throws -> SelectAnswer

/// Where a case of a select under way lies.
@usableFromInline typealias SelectWaiterRef = UnsafeMutablePointer<SelectWaiter>

extension SelectOperation {
  @inlinable @inline(__always)
  static func perform(_ step: SelectStep, _ waiter: SelectWaiterRef) -> SelectAnswer {
    waiter.place(Place.self)._withUnsafeGuaranteedRef { place in
      switch step {
      case .attempt: return attempt(place, waiter)
      case .prepare: prepare(place, waiter)
      case .dispose: dispose(place, waiter)
      case .finish: break
      }
      return .yes
    }
  }
}

extension SelectWaiterRef {
  @inlinable var waitNode: UnsafeMutablePointer<Waiter> {
    @inline(__always) get { UnsafeMutableRawPointer(self).assumingMemoryBound(to: Waiter.self) }
  }

  /// The place, which the case holds: `place` is its first field.
  @inlinable @inline(__always)
  func place<Place: AnyObject>(_ type: Place.Type) -> Unmanaged<Place> {
    UnsafeRawPointer(pointee.source).assumingMemoryBound(to: Unmanaged<Place>.self).pointee
  }
}
