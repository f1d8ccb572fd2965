public import CCoroutine
public import Synchronization

// The part of a job that the scheduler uses. It is a plain record behind a plain pointer, so queueing, waking and
// switching do not retain and release. Each such pair would cost as much as a switch.
//
// Access
//   wait                any thread, atomically (Waiter.swift has the protocol)
//   waitKind, waitSource, waitingSince, selectCount
//                       written on the job's own carrier; read by dumps
//   sweptEpoch          the sweeper (DeadPages.swift)
//   stateWord           by the state of the job; see there
//   flags, cancelReason any thread, atomically
//   scheduler           written on the job's own carrier, by the worker that steals it from a ready queue, or by the
//                       thread that has claimed its wait and moves it to another worker; read by any thread
//   next                the owner of the queue that the job is in, or the thread that has claimed its wait and not yet
//                       woken it
//   owner               the home scheduler's live lock, until the job is published; then its own carrier; read by any
//                       thread
//   live links          the home scheduler's live lock
//   everything else     the job's own carrier (its scheduler's serial execution)
//
// Lifetime. The record is in the cell of the job's object (JobMemory.swift). A live job (launched, not finished) holds
// one retain of its handle, so a live job that is reached by pointer may be used.

/// A pointer to a job's record.
@usableFromInline typealias JobRef = UnsafeMutablePointer<JobRecord>

@usableFromInline
struct JobRecord: ~Copyable {
  // First cache line: the fields that a switch uses.
  @usableFromInline var context: UnsafeMutablePointer<cco_context>?
  @usableFromInline var next: JobRef?
  @usableFromInline let wait = Atomic<UInt64>(0)
  @usableFromInline let scheduler: Atomic<Unmanaged<Scheduler>>
  @usableFromInline let flags = Atomic<UInt32>(0)
  /// The last bits of the epoch of the wait that a sweep has looked at; used by the sweeper only (DeadPages.swift).
  var sweptEpoch: UInt8 = 0
  @usableFromInline let waitKind = Atomic<UInt8>(WaitKind.start.rawValue)
  @usableFromInline var stackClass: UInt8
  @usableFromInline let selectCount = Atomic<UInt8>(0)
  /// The time at which the job parked, yielded or was launched.
  @usableFromInline let waitingSince = Atomic<UInt64>(0)
  /// The source that the job waits for, for dumps.
  ///
  /// The address of a channel, lock or semaphore, of the first source of a select, or of the completion of a job or
  /// promise; the end of a delay; the number of a descriptor; 0 if there is nothing to report. Valid as long as `wait`
  /// does not change (Inspection.swift).
  ///
  /// Until the first wait: the number of bytes of the stack that the job asks for.
  @usableFromInline let waitSource: Atomic<UInt>

  @usableFromInline var frames: UnsafeMutablePointer<CancelFrame>?
  // The next two are laid out as a Flow, which `flow` returns as what follows `frames`.
  /// The number under which the job owns locks, from its registration on: no other owner in this process has it.
  ///
  /// `OwnerNumber.mayStep` is set once the job has stepped a generator: its code may be running in a body then, where
  /// locks are counted.
  @usableFromInline let owner = Atomic<UInt>(0)
  @usableFromInline var locals: Unmanaged<LocalBinding>?

  // The infrequently used fields.
  /// What a job needs in one of its states only, before its body begins.
  ///
  ///     state                   word                              access
  ///     lazy, before its start  its anchor, with a reference and  the thread that launches it, then the one that
  ///                             `isAnchor`, or 0 (AnyJob.launch)  starts it, or the deinit
  ///     in a LaunchStack        the job in front of it            under the lock of the worker's ReadyQueue
  @usableFromInline let stateWord = Atomic<UInt>(0)
  @usableFromInline var home: Unmanaged<Scheduler>
  @usableFromInline var previousLive: JobRef?
  @usableFromInline var nextLive: JobRef?
  /// The address of the waiters of the select that the job waits in, as long as `wait` does not change.
  ///
  /// Written on the job's own carrier; read by dumps.
  @usableFromInline let selectWaiters = Atomic<UInt>(0)
  @usableFromInline let cancelReason = Atomic<Unmanaged<CancelReason>?>(nil)
  /// Number, name and launch site.
  ///
  /// The name is a separate C string, because a report of an overflow can use nothing else. It is part of
  /// a JobName, of which the label has a reference. The last field, see `JobRef.label`.
  @usableFromInline var label: cco_label

  @usableFromInline
  init(scheduler: Unmanaged<Scheduler>, stack: StackSize, launchSite: LaunchSite) {
    self.scheduler = Atomic(scheduler)
    self.home = scheduler
    self.waitSource = Atomic(UInt(bitPattern: stack.byteCount))
    self.stackClass = UInt8(cco_stack_class(stack.byteCount))
    self.label = cco_label(id: 0, name: nil, launchSite)
  }
}

extension JobRecord {
  /// The job in front of this one in a LaunchStack.
  @inlinable var previousLaunched: JobRef? {
    get { JobRef(bitPattern: stateWord.load(ordering: .relaxed)) }
    nonmutating set { stateWord.store(UInt(bitPattern: newValue), ordering: .relaxed) }
  }

  /// The number of bytes of the stack that a job asks for which has not begun.
  var stackBytes: Int { Int(bitPattern: waitSource.load(ordering: .relaxed)) }

  /// Keeps the anchor of a lazy job until its start, because its scheduler does not hold it for the job before.
  func setPendingAnchor(_ anchor: Anchor) {
    stateWord.store(UInt(bitPattern: Unmanaged.passRetained(anchor).toOpaque()) | Self.isAnchor, ordering: .relaxed)
  }

  /// The anchor of a lazy job that has not started; the caller gets its reference.
  func takePendingAnchor() -> Unmanaged<Anchor>? {
    let word = stateWord.load(ordering: .relaxed)
    guard word & Self.isAnchor != 0 else { return nil }
    stateWord.store(0, ordering: .relaxed)
    return UnsafeRawPointer(bitPattern: word & ~Self.isAnchor).map { Unmanaged.fromOpaque($0) }
  }

  /// Marks an anchor in `stateWord`: the lowest bit, which is clear in all other addresses there.
  private static var isAnchor: UInt { 1 }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Whether the job stays on its scheduler's thread.
  var keepsThread: Bool { pointee.flags.load(ordering: .relaxed) & JobFlags.keepsThread != 0 }

  /// The address of the label, which other threads may be reading: computed, because an inout access would count as a
  /// write.
  // Sound because it is the last field, and neither type has padding at its end.
  var label: UnsafePointer<cco_label> {
    let offset = MemoryLayout<JobRecord>.size - MemoryLayout<cco_label>.size
    return UnsafeRawPointer(self).advanced(by: offset).assumingMemoryBound(to: cco_label.self)
  }
}

/// The place where a job was launched, for dumps and overflow reports.
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
  /// Creates a label with a literal, or with a C string that outlives it.
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

/// The kind of event that a job waits for, for dumps.
@usableFromInline
enum WaitKind: UInt8, Sendable {
  case start, nothing, callback, task, delay, job, promise, children, select, blocking, readable, writable, lock
  case receive, send, permits, condition, group, answer, decision
  /// The job has yielded: it is ready, and waits for nothing.
  case ready
  /// The job waits until another scheduler takes it over (Arrival.swift).
  case queue
  /// A descriptor, in both directions.
  case descriptor
}
