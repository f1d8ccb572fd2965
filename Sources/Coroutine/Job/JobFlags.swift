/// The bits of `JobRecord.flags`.
///
/// JobHold.swift has the protocol of the bits about the job's holder.
@usableFromInline
enum JobFlags {
  /// The job was cancelled.
  @usableFromInline static let cancelled: UInt32 = 1
  /// A frame of the cancellation chain (deadline, scope) may be cancelled.
  @usableFromInline static let signalled: UInt32 = 2
  /// The job has been enqueued; a lazy job has not until its start.
  @usableFromInline static let enqueued: UInt32 = 8
  /// A wait of the job has thrown the failure of another job, of a promise or of a channel; see ReceivedFailure.swift.
  static let gotFailure: UInt32 = 16
  /// Held outside its scheduler.
  @usableFromInline static let foreign: UInt32 = 32
  /// Its scheduler popped the job while it was foreign.
  @usableFromInline static let deferredWake: UInt32 = 64
  /// Its scheduler received an interrupt of the job while it was foreign.
  @usableFromInline static let deferredInterrupt: UInt32 = 128
  /// A shield, or a wait that outlasts cancellation, is active: values are delivered in spite of a cancellation.
  @usableFromInline static let shielded: UInt32 = 256
  /// The job has inherited task-locals, which it enters when it starts (TaskLocalSnapshot.swift).
  @usableFromInline static let inheritsTaskLocals: UInt32 = 512
  /// The job stays on its scheduler, whose thread is always the same (Carrier.swift); changed on the job's own
  /// carrier.
  static let keepsThread: UInt32 = 1024
  /// The body has begun, or the job has failed in its place (JobStart.swift).
  @usableFromInline static let begun: UInt32 = 2048
  /// A counter in the remaining bits: the number of schedulers that handle an interrupt of the job, of which at most
  /// one reads its frames.
  @usableFromInline static let inspecting: UInt32 = 0xFFFC_0000
  static let oneInspection: UInt32 = 0x4_0000

  // Sets of these.

  /// `cancelled` or `signalled`: check the chain before waiting.
  @usableFromInline static let needsCancellationCheck: UInt32 = 3
  /// `cancelled` or `inheritsTaskLocals`: the body does not begin at once.
  @usableFromInline static let needsPreparation: UInt32 = 513
  /// Any of these: no other thread may move the job, even if it is parked.
  static let staysThere: UInt32 = foreign | inspecting | keepsThread
}
