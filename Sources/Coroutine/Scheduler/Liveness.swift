/// The live jobs and pins of a scheduler, and the anchor that they keep; guarded by `Scheduler.liveLock`.
///
///                the first job or pin: takes the anchor
///     OVER ------------------------------------------------> LIVE
///       ^                                                      |  the last job or pin goes, outside the scheduler's
///       | <----------------------------------------------------+  carrier: the anchor is released at once
///       |                                                      |  on its carrier
///       +---- the drain, before it goes idle: releases it --- ENDING; a handler that is attached here: LIVE
///
/// `AnyJob.goLive` retains a job; `register`, `pin` and `takeAnchorElsewhere` take the anchor (Scheduler+Anchor.swift).
///
/// Invariants
///  1. `jobs` is the length of the list that begins at `first`, linked by the records' live links, the latest first. A
///     job is in it from its launch to its end, and holds a reference to its object meanwhile.
///  2. If the host releases its anchor, as that of a queue does, `anchor` is set in LIVE and in ENDING. A worker has
///     its anchor for ever. The scheduler of a world, or of a loop of another library, has none: its jobs and its first
///     pin hold it instead.
///  3. `nextListed` and `nextSwept` are nil or in the list. So a dump, and the sweep for dead pages, may leave the lock
///     between any two jobs of its walk.
///  4. `endedBy` is set once. A job that is linked before is in the list that `end` makes; one that is linked later is
///     refused (Scheduler+HostEnded.swift).
struct Liveness {
  /// Whether the host's anchor is released when nothing is live.
  let releasesAnchor: Bool
  var anchor: Anchor?
  private(set) var first: JobRef?
  /// The job at which a dump continues its walk through the live jobs.
  var nextListed: JobRef?
  /// The job at which a sweep continues (DeadPages.swift).
  var nextSwept: JobRef?
  private(set) var jobs = 0
  var pins = 0
  /// The last number that was assigned to a job, and the last one of the reserved block.
  var lastID: UInt64 = 0
  var lastReserved: UInt64 = 0
  /// The error of each job that is launched from now on; nil unless the host has ended.
  var endedBy: (any Error)?

  init(anchor: Anchor?, releasesAnchor: Bool) {
    self.anchor = anchor
    self.releasesAnchor = releasesAnchor
  }

  var isOver: Bool { jobs == 0 && pins == 0 }

  /// Whether the first job or pin has to bring the anchor.
  var needsAnchor: Bool { releasesAnchor && anchor == nil }

  mutating func link(_ job: JobRef) {
    jobs += 1
    job.pointee.previousLive = nil
    job.pointee.nextLive = first
    first?.pointee.previousLive = job
    first = job
  }

  mutating func unlink(_ job: JobRef) {
    if let previous = job.pointee.previousLive {
      previous.pointee.nextLive = job.pointee.nextLive
    } else {
      first = job.pointee.nextLive
    }
    job.pointee.nextLive?.pointee.previousLive = job.pointee.previousLive
    if nextListed == job { nextListed = job.pointee.nextLive }
    if nextSwept == job { nextSwept = job.pointee.nextLive }
    jobs -= 1
  }
}
