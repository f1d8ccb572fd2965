import Synchronization

// `for value in channel` cannot throw. If it ends by a cancellation, or by a close with a cause, a part of the values
// looks like all of them. So the iterator leaves a note with the job, and the failure is reported to
// `CoroutineRuntime.unhandledErrorHandler`, unless the coroutine throws it itself.
//
//   NONE --the loop ends by a failure--> NOTED (JobFlags.loopEnded)
//
//   what happens next in the coroutine                  a cancellation        a cause
//   a suspension point throws a cancellation            forgotten             reported
//   a receive from the same channel throws the cause    -                     forgotten
//   a suspension point throws nothing                   reported (1)          due: reported at the next one (2)
//   `co_isCancelled` is read and true                   forgotten             stays noted
//   the coroutine ends, or another loop leaves a note   reported              reported
//
// (1) The cancellation has gone: it was that of a deadline or a scope whose body has returned. Inside a shield it is
//     only hidden, and the note stays.
// (2) Only the wait itself, after that point, can throw the cause.
//
// Waits pay nothing: the flag is among those for which a suspension point leaves its fast path (`checkCancelled`). The
// notes are in a table by the addresses of the jobs, because few jobs have one.

enum LoopEnds {
  private struct Note {
    let error: any Error
    /// The address of the channel; 0 for a cancellation.
    let channel: UInt
    var isDue = false
  }

  // Not shared: an entry is accessed by its own job only.
  private static let lock = ThreadLock()
  // Sound because it is accessed under `lock`.
  nonisolated(unsafe) private static var notes: [UInt: Note] = [:]

  /// Notes that a loop of the running job has ended by `error`.
  static func leave(_ error: any Error, of channel: UInt, _ job: JobRef) {
    jobEnds(job)
    set(Note(error: error, channel: channel), job)
    _ = job.pointee.flags.bitwiseOr(JobFlags.loopEnded, ordering: .relaxed)
  }

  /// Called at a suspension point of the running job, which throws `error`, or goes on.
  static func suspensionPoint(_ job: JobRef, throwing error: (any Error)?) {
    guard var note = note(of: job) else { return }
    if note.channel == 0 {
      if error != nil { return forget(job) }
      if !job.isShielded { report(note, job) }
    } else if error != nil || note.isDue {
      report(note, job)
    } else {
      note.isDue = true
      set(note, job)
    }
  }

  /// Called when the running job has seen that it is cancelled.
  static func sawCancellation(_ job: JobRef) {
    if note(of: job)?.channel == 0 { forget(job) }
  }

  /// Called when a receive of the running job throws the cause of `channel`.
  static func threwCause(of channel: UInt) {
    guard let job = Carrier.current?.pointee.job, job.hasLoopEnd, note(of: job)?.channel == channel else { return }
    forget(job)
  }

  /// Called at the end of the job.
  static func jobEnds(_ job: JobRef) {
    guard job.hasLoopEnd, let note = note(of: job) else { return }
    report(note, job)
  }

  private static func report(_ note: Note, _ job: JobRef) {
    forget(job)
    let origin = job.handle._withUnsafeGuaranteedRef { $0.origin }
    UnhandledErrors.report(
      CoroutineRuntime.UnhandledError(
        error: note.error,
        name: origin.name?.text,
        launchSite: origin.launchSite.description,
        origin: "a `for in` over a channel, which has not received all values, in \(origin.summary)"
      )
    )
  }

  // MARK: The table

  private static func note(of job: JobRef) -> Note? { lock.withLock { notes[UInt(bitPattern: job)] } }

  private static func set(_ note: Note, _ job: JobRef) {
    let old = lock.withLock { notes.updateValue(note, forKey: UInt(bitPattern: job)) }
    withExtendedLifetime(old) {}
  }

  private static func forget(_ job: JobRef) {
    _ = job.pointee.flags.bitwiseAnd(~JobFlags.loopEnded, ordering: .relaxed)
    let old = lock.withLock { notes.removeValue(forKey: UInt(bitPattern: job)) }
    withExtendedLifetime(old) {}
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Whether a loop over a channel has left a note (LoopEnds).
  fileprivate var hasLoopEnd: Bool { pointee.flags.load(ordering: .relaxed) & JobFlags.loopEnded != 0 }

  /// Whether the running code is inside a shield.
  fileprivate var isShielded: Bool {
    var frame = pointee.frames
    while let current = frame {
      if current.pointee.kind == .shield { return true }
      frame = current.pointee.outer
    }
    return false
  }
}
