// A step of a world: one candidate runs until it waits, yields or ends, or until a point.
//
//                       perform                        the policy chooses another one at a point
//   idle(previous) ----------------> running(Run) ------------------------------------> interrupted(candidate, next)
//     ^  ^                                |                                                        |
//     |  +------------- endStep ----------+                                                        |
//     +----------------------------- takeNext returns `next` --------------------------------------+
//
// Invariants
//  1. A policy that needs footprints gets one report (`stepFinished`) for each step, and for each part of a step that
//     ends at a point.
//  2. An interrupted coroutine is a candidate from then on. It is also about to leave its stack, and enters its ready
//     queue by that. The next gather, which comes before the next takeNext, finds it there and does not list it again.
//  3. `next` is in no list. takeNext returns it before any other candidate, also when the world ends.

extension SimulatedWorld {
  enum Step {
    /// `previous` was the last to run; nil if time has passed since then.
    case idle(previous: Candidate?)
    case running(Run)
    /// The policy has interrupted a coroutine at a point, to let `next` run.
    case interrupted(Candidate, next: Candidate)

    /// The candidate that runs, or was the last to run.
    var candidate: Candidate? {
      switch self {
      case .idle(let previous): previous
      case .running(let run): run.candidate
      case .interrupted(let candidate, _): candidate
      }
    }

    @inline(__always)
    func hasInterrupted(_ job: JobRef) -> Bool {
      if case .interrupted(let candidate, _) = self { candidate.job == job } else { false }
    }
  }

  /// A candidate that runs, and what it has done since it was resumed.
  struct Run {
    var candidate: Candidate
    /// The number of points that it has passed.
    var points = 0
    /// The number of cancellation errors that it has thrown.
    var cancellations = 0

    init(_ candidate: Candidate) { self.candidate = candidate }
  }

  /// The run of `job`; nil for a coroutine that starts immediately, on a nested carrier, in its launcher's step.
  func currentRun(of job: JobRef) -> Run? {
    guard case .running(let run) = step, run.candidate.job == job,
      Carrier.current == run.candidate.executor.carrier
    else { return nil }
    return run
  }

  /// Lets the policy choose at a point whether the running coroutine continues; returns whether it must leave its
  /// stack.
  ///
  /// Called on the coroutine's stack, before a wait begins or at a co_point.
  func reachesPoint(_ job: JobRef, _ source: UInt, holdsQueue: Bool) -> Bool {
    guard var run = currentRun(of: job) else { return !holdsQueue }
    let executor = run.candidate.executor
    executor.carrier.pointee.waitsLeft = 0
    run.points += 1
    step = .running(run)
    // A coroutine whose waits are all satisfied at once must not starve the other ones.
    if run.points > 256, !(holdsQueue && executor.isSerial) {
      footprints?.arrive(run.candidate.id, source)
      return true
    }
    if isEnding { return false }
    if !holdsQueue {
      executor.letOvertake(&run.candidate, &candidates)
      step = .running(run)
    }
    gather()
    report(run.candidate)
    footprints?.arrive(run.candidate.id, source)
    return interrupts(run.candidate)
  }

  /// Asks the policy whether a candidate that is at a point continues.
  @inline(__always)
  private func interrupts(_ candidate: Candidate) -> Bool {
    if !candidates.isEmpty {
      candidates.prepend(candidate)
      let index = candidates.withWindow { policy.chooseNext($0, continues: true, previous: candidate.id) }
      let chosen = candidates.remove(at: index)
      if chosen.word != candidate.word {
        // The one that is listed is still the head of its queue.
        var left = candidate
        left.isHead = false
        step = .interrupted(left, next: chosen)
        return true
      }
    }
    footprints?.begin(candidate)
    return false
  }

  /// Ends the current step, unless a point has ended it, before its coroutine has left the stack.
  func endStep() {
    guard case .running(let run) = step else { return }
    if footprints != nil {
      // The step may have sent a message to another executor, for example to cancel one of its coroutines.
      gather()
      report(run.candidate)
    }
    step = .idle(previous: run.candidate)
  }

  /// Reports the end of a step to a policy that needs footprints.
  @inline(__always)
  private func report(_ candidate: Candidate) {
    guard let footprints else { return }
    policy.stepFinished(candidate.id, isUniversal: footprints.isUniversal) { footprints.touches($0) }
  }

  /// Records that the candidate uses an object without waiting for it.
  func touches(_ object: UInt) {
    if footprints != nil, let candidate = step.candidate { footprints?.touch(candidate.id, object) }
  }
}
