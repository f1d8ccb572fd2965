internal import CCoroutine
import Synchronization

// How a world finds what can take the next step: in the inboxes, ready queues and work queues of its executors.

extension SimulatedWorld {
  /// Lists everything that became ready as candidates.
  func gather() {
    gatherReady()
    while arrivals > 0, let candidate = candidates.removeCancelledArrival(), let arrival = candidate.arrival {
      // The coroutine may be a candidate itself by now, with the same number.
      arrivals -= 1
      _ = candidate.executor.scheduler.arrive(arrival)
      candidate.executor.ended(candidate, &candidates)
    }
  }

  private func gatherReady() {
    var isComplete: Bool
    repeat {
      isComplete = true
      // By index, because handling a message may create an executor.
      var index = 0
      while index < executors.count {
        if gather(executors[index]) { isComplete = false }
        index += 1
      }
    } while !isComplete
  }

  /// Lists everything that became ready in one executor.
  ///
  /// Returns whether it has handled messages, which may have made jobs of other executors ready.
  @inline(__always)
  private func gather(_ executor: SimulatedExecutor) -> Bool {
    let scheduler = executor.scheduler
    let hasMessages = scheduler.inbox.hasMessages
    if hasMessages {
      let mounted = cco_thread().pointee.carrier
      mount(executor)
      scheduler.inbox.takeAll(as: nil, scheduler.handle)
      cco_thread().pointee.carrier = mounted
      // After the messages: taking them acquires the stores that were made before they were sent.
      if hasSwiftJobFromOutside.load(ordering: .relaxed) { checkSwiftJobFromOutside() }
    }
    while let job = scheduler.readyQueue.pointee.queue.popFirst() {
      if !step.hasInterrupted(job) { executor.add(.job(job), to: &candidates) }
    }
    while let message = scheduler.work.popFirst() {
      if Candidate.arrival(message) != nil { arrivals += 1 }
      executor.add(message, to: &candidates)
    }
    return hasMessages
  }

  /// Lists a body of co_blocking as a candidate.
  func addBlocking(_ body: @escaping @Sendable () -> Void) {
    let item = Inbox.Message.work(ClosureWork.retained(body, nil))
    candidates.append(Candidate(item, id: Candidate.noJob | takeID(), executor(of: nil), isHead: false))
  }
}
