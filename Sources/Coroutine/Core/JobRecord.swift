public import CCoroutine
public import Synchronization

// The part of a job that the scheduler works with: a plain record reached by a plain pointer, so that queueing, waking and
// switching retain and release nothing (each such pair would cost as much as a switch).
//
// Who owns what
//   wait                anyone, atomically (Waiter.swift has the protocol)
//   flags, cancelReason anyone, atomically
//   scheduler           written by the job's own turn or by the thief that takes it from a ready queue; read by anyone
//   previousLaunched    the lane in whose LaunchStack it is
//   next                whoever has the job: the queue it is in, or the one who claimed its wait and has not woken it yet
//   interruptLink       whoever set the `interruptPending` flag
//   live links          the home scheduler's live lock
//   everything else     the job's own turn (its scheduler's serial execution)
//
// Lifetime: the record is a stored property of the job's object, which is where its address comes from. A live job (launched, not finished) holds one retain of its
// handle, so whoever reaches a live job by pointer may use it.

/// A pointer to a job's record.
@usableFromInline typealias JobRef = UnsafeMutablePointer<JobRecord>

@usableFromInline
struct JobRecord: ~Copyable {
  // First cache line: what a switch touches.
  @usableFromInline var context: UnsafeMutablePointer<cco_context>?
  @usableFromInline var next: JobRef?
  @usableFromInline let wait = Atomic<UInt64>(0)
  @usableFromInline let scheduler: Atomic<Unmanaged<Scheduler>>
  @usableFromInline let flags = Atomic<UInt32>(0)
  @usableFromInline var after = AfterSwitch.nothing
  @usableFromInline let waitKind = Atomic<UInt8>(WaitKind.start.rawValue)
  @usableFromInline var stackClass: UInt8
  @usableFromInline let waitingSince = Atomic<UInt64>(0)
  @usableFromInline var frames: UnsafeMutablePointer<CancelFrame>?

  // The rest.
  @usableFromInline var locals: Unmanaged<LocalBinding>?
  @usableFromInline var handle: Unmanaged<AnyJob>
  @usableFromInline var home: Unmanaged<Scheduler>
  @usableFromInline var previousLive: JobRef?
  @usableFromInline var nextLive: JobRef?
  @usableFromInline var interruptLink: UInt = 0
  @usableFromInline var previousLaunched: JobRef?
  /// Held while `scheduler` changes and the old one is given up, and by those who need to hold the one that it names.
  let move = SpinLock()
  @usableFromInline let cancelReason = Atomic<Unmanaged<CancelReason>?>(nil)
  @usableFromInline let stackBytes: Int
  @usableFromInline var destination: Unmanaged<Scheduler>?
  @usableFromInline var id: UInt64 = 0
  @usableFromInline let place: LaunchPlace
  /// The name as a C string of its own: a report of an overflow can do with nothing else.
  @usableFromInline var name: UnsafeMutablePointer<CChar>?

  /// The record lies in the job's object, which is not complete yet: `handle` is set right after.
  @usableFromInline
  init(scheduler: Unmanaged<Scheduler>, stack: StackSize, place: LaunchPlace) {
    self.handle = Unmanaged.fromOpaque(UnsafeRawPointer(bitPattern: 16).unsafelyUnwrapped)
    self.scheduler = Atomic(scheduler)
    self.home = scheduler
    self.stackBytes = stack.byteCount
    self.stackClass = UInt8(cco_stack_class(stack.byteCount))
    self.place = place
  }
}

/// Where a job was launched, for dumps and last words.
@usableFromInline
struct LaunchPlace: Sendable {
  // Sound because it points to a literal.
  @usableFromInline nonisolated(unsafe) let file: UnsafePointer<UInt8>
  @usableFromInline let length: UInt32
  @usableFromInline let line: UInt32

  @inlinable
  init(file: StaticString, line: UInt) {
    self.file = file.utf8Start
    self.length = UInt32(truncatingIfNeeded: file.utf8CodeUnitCount)
    self.line = UInt32(truncatingIfNeeded: line)
  }
}

/// What the arriving flow of control does for the job that just left, because only now is its stack switched out.
@usableFromInline
enum AfterSwitch: UInt8 {
  case nothing
  /// To the back of its scheduler's ready queue.
  case requeue
  /// To the inbox of `destination`.
  case transfer
}

/// What a job waits for, as a dump names it.
@usableFromInline
enum WaitKind: UInt8, Sendable {
  case start, nothing, callback, delay, job, promise, children, several, blocking, readable, writable, lock, channel
  case permits, condition, group, answer, decision
}

/// The bits of `JobRecord.flags`.
@usableFromInline
enum JobFlags {
  /// cancel was called.
  @usableFromInline static let cancelled: UInt32 = 1
  /// A frame of the cancellation chain (deadline, scope) has something to say.
  @usableFromInline static let signalled: UInt32 = 2
  /// Either of the two: look before you wait.
  @usableFromInline static let mustLook: UInt32 = 3
  /// An interrupt of this job is in some inbox.
  @usableFromInline static let interruptPending: UInt32 = 4
  /// It has been put in a queue; a lazy job has not yet.
  @usableFromInline static let enqueued: UInt32 = 8
  /// Its scheduler is looking at its frames: the waker of a parked job must not take it to another lane meanwhile.
  @usableFromInline static let looking: UInt32 = 16
  /// A shield is in force, or a wait that outlasts cancellation: values are delivered all the same.
  @usableFromInline static let shielded: UInt32 = 256
  /// It runs on a turn that is not its scheduler's (an immediate start), see Immediate.swift.
  @usableFromInline static let foreign: UInt32 = 32
  /// Its scheduler popped it while it was foreign.
  @usableFromInline static let deferredWake: UInt32 = 64
  /// Its scheduler met an interrupt of it while it was foreign.
  @usableFromInline static let deferredInterrupt: UInt32 = 128
}
