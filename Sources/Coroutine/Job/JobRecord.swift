public import CCoroutine
public import Synchronization

// The part of a job that the scheduler works with: a plain record reached by a plain pointer, so that queueing, waking and
// switching retain and release nothing (each such pair would cost as much as a switch).
//
// Who owns what
//   wait                anyone, atomically (Waiter.swift has the protocol)
//   waitKind, waitSource, waitingSince, selectNodes, selectCount   written by the job's own turn; read by dumps
//   flags, cancelReason anyone, atomically
//   scheduler           written by the job's own turn, by the thief that takes it from a ready queue, or by whoever has
//                       claimed its wait and takes it to another worker; read by anyone
//   previousLaunched    the worker in whose LaunchStack it is
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
  @usableFromInline let selectCount = Atomic<UInt8>(0)
  @usableFromInline let waitingSince = Atomic<UInt64>(0)
  @usableFromInline var frames: UnsafeMutablePointer<CancelFrame>?
  /// What the job waits for, for dumps: the address of a channel, lock or semaphore, of the first of a select's sources, of the
  /// completion of a job or promise; the end of a delay; a descriptor's number; 0: nothing that could be told.
  ///
  /// Valid as long as `wait` keeps its word (Inspection.swift).
  @usableFromInline let waitSource = Atomic<UInt>(0)

  // The rest.
  /// The address of a select's nodes, which are `selectCount`; valid under the same condition.
  @usableFromInline let selectNodes = Atomic<UInt>(0)
  @usableFromInline var locals: Unmanaged<LocalBinding>?
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
  /// Number, name and launch place.
  ///
  /// The name is a C string of its own: a report of an overflow can do with nothing else. Last, see `JobRef.label`.
  @usableFromInline var label: cco_label

  @usableFromInline
  init(scheduler: Unmanaged<Scheduler>, stack: StackSize, launchSite: LaunchSite) {
    self.scheduler = Atomic(scheduler)
    self.home = scheduler
    self.stackBytes = stack.byteCount
    self.stackClass = UInt8(cco_stack_class(stack.byteCount))
    self.label = cco_label(id: 0, name: nil, launchSite)
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// The object that the record lies in.
  @inlinable var handle: Unmanaged<AnyJob> {
    @inline(__always) get { object(holding: UnsafeRawPointer(self), at: 0) }
  }

  /// Where the label lies, which others may be reading: found by its place, because an inout access would count as a write.
  // Sound because it is the last field, and neither has padding at its end.
  var label: UnsafePointer<cco_label> {
    let offset = MemoryLayout<JobRecord>.size - MemoryLayout<cco_label>.size
    return UnsafeRawPointer(self).advanced(by: offset).assumingMemoryBound(to: cco_label.self)
  }
}

/// Where a job was launched, for dumps and last words.
@usableFromInline
struct LaunchSite: Sendable {
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

  fileprivate init(_ label: cco_label) {
    file = UnsafeRawPointer(label.file.unsafelyUnwrapped).assumingMemoryBound(to: UInt8.self)
    length = label.file_length
    line = label.line
  }
}

extension cco_label {
  /// Of a literal, or of a C string that outlives it.
  @inlinable
  init(id: UInt64, name: StaticString?, _ launchSite: LaunchSite) {
    self.init(
      id: id,
      name: name.map { UnsafeRawPointer($0.utf8Start).assumingMemoryBound(to: CChar.self) },
      file: UnsafeRawPointer(launchSite.file).assumingMemoryBound(to: CChar.self),
      file_length: launchSite.length,
      line: launchSite.line
    )
  }

  var launchSite: LaunchSite { LaunchSite(self) }
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
  case start, nothing, callback, delay, job, promise, children, select, blocking, readable, writable, lock
  case receive, send, permits, condition, group, answer, decision
  /// It has yielded, or changes its queue: it is ready, and waits for nothing.
  case carrier
}

/// The bits of `JobRecord.flags`.
@usableFromInline
enum JobFlags {
  /// cancel was called.
  @usableFromInline static let cancelled: UInt32 = 1
  /// A frame of the cancellation chain (deadline, scope) has something to say.
  @usableFromInline static let signalled: UInt32 = 2
  /// Either of the two: look before you wait.
  @usableFromInline static let needsCancellationCheck: UInt32 = 3
  /// An interrupt of this job is in some inbox.
  @usableFromInline static let interruptPending: UInt32 = 4
  /// A wait of it has thrown the failure of another job, of a promise or of a channel; see PassedOn.swift.
  static let gotFailure: UInt32 = 16
  /// It has been put in a queue; a lazy job has not yet.
  @usableFromInline static let enqueued: UInt32 = 8
  /// A count in the upper half: how many schedulers handle an interrupt of it, of which one at most looks at its frames.
  ///
  /// Nobody may take a parked job to another worker meanwhile. A count, because a worker that the job has left may still be
  /// about to find that out when the worker that it is on begins to look: a bit would be cleared by the first.
  @usableFromInline static let inspecting: UInt32 = 0xFFFF_0000
  static let oneInspection: UInt32 = 0x1_0000
  /// A shield is in force, or a wait that outlasts cancellation: values are delivered all the same.
  @usableFromInline static let shielded: UInt32 = 256
  /// Somebody else than its scheduler has it: a turn that is not its scheduler's (ImmediateStart.swift), or a watchdog that looks
  /// at its frames (Interrupt.swift).
  @usableFromInline static let foreign: UInt32 = 32
  /// Its scheduler popped it while it was foreign.
  @usableFromInline static let deferredWake: UInt32 = 64
  /// Its scheduler met an interrupt of it while it was foreign.
  @usableFromInline static let deferredInterrupt: UInt32 = 128
}
