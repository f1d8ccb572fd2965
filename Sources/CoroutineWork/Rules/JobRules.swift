#if Postgres
// The rules of a job's states, without a database: what the statements of `JobTable` do to one row.
//
// Invariants
//  1. Only a claim gives a row a fence, and a later claim of any row gives a greater one.
//  2. A change by a worker (finish, fail, snooze, discard, release, extend) takes effect only if the row is running
//     and has the worker's fence. So at most one claim of a job ever finishes it: a finish leaves `running`, and each
//     later claim has another fence.
//  3. A row is running exactly while it has an end of its lease.
//  4. `attempt` counts claims whose end counts: a crash and a failure do; a snooze and a release do not.
//
// Who wins a race: each change is one update of one row, under the row's lock, which checks fence and state. The
// second of two changes finds what the first has left. Tests compare these rules with the statements, step by step,
// and run them as a model, in every schedule.

/// One job, as far as its states go.
package struct JobRules: Hashable, Sendable {
  package var state = WorkState.available
  package var attempt = 0
  package var attempts: Int
  package var fence: Int64 = 0
  package var leaseEnds: Int?
  /// Not before this time.
  package var at: Int
  package var isCancelAsked = false

  package init(attempts: Int, at: Int, now: Int) {
    self.attempts = attempts
    self.at = at
    state = at <= now ? .available : .scheduled
  }

  /// What an extension says to the worker.
  package enum Extension: Hashable, Sendable { case kept, cancelled, lost }

  package mutating func claim(fence next: Int64, now: Int, lease: Int) -> Bool {
    guard state == .available else { return false }
    state = .running
    attempt += 1
    fence = next
    leaseEnds = now + lease
    return true
  }

  package mutating func extend(fence: Int64, now: Int, lease: Int) -> Extension {
    guard isHeld(fence) else { return .lost }
    guard !isCancelAsked else {
      end(.cancelled)
      return .cancelled
    }
    leaseEnds = now + lease
    return .kept
  }

  package mutating func finish(fence: Int64) -> Bool {
    guard isHeld(fence) else { return false }
    end(.completed)
    return true
  }

  package mutating func fail(fence: Int64, now: Int, delay: Int) -> Bool {
    guard isHeld(fence) else { return false }
    if isCancelAsked {
      end(.cancelled)
    } else if attempt >= attempts {
      end(.discarded)
    } else {
      end(delay > 0 ? .retryable : .available)
      at = now + delay
    }
    return true
  }

  package mutating func discard(fence: Int64) -> Bool {
    guard isHeld(fence) else { return false }
    end(.discarded)
    return true
  }

  package mutating func snooze(fence: Int64, now: Int, delay: Int) -> Bool {
    guard isHeld(fence) else { return false }
    attempt -= 1
    end(isCancelAsked ? .cancelled : delay > 0 ? .scheduled : .available)
    if state != .cancelled { at = now + delay }
    return true
  }

  /// The worker gives the job back, because it ends.
  package mutating func release(fence: Int64) -> Bool {
    guard isHeld(fence) else { return false }
    attempt -= 1
    end(isCancelAsked ? .cancelled : .available)
    return true
  }

  /// Anybody takes the job from a worker whose lease has ended.
  package mutating func rescue(now: Int) -> Bool {
    guard state == .running, leaseEnds! < now else { return false }
    end(isCancelAsked ? .cancelled : attempt >= attempts ? .discarded : .available)
    return true
  }

  package mutating func becomeDue(now: Int) -> Bool {
    guard state == .scheduled || state == .retryable, at <= now else { return false }
    state = .available
    return true
  }

  package mutating func cancel() -> Bool {
    guard !state.isFinal else { return false }
    if state == .running { isCancelAsked = true } else { end(.cancelled) }
    return true
  }

  package mutating func retry(now: Int) -> Bool {
    guard state.isFinal else { return false }
    state = .available
    attempts = attempt + 1
    at = now
    isCancelAsked = false
    return true
  }

  private func isHeld(_ fence: Int64) -> Bool { state == .running && self.fence == fence }

  private mutating func end(_ next: WorkState) {
    state = next
    leaseEnds = nil
  }
}
#endif
