import Synchronization

// Pins for promise handlers. While handlers wait for the scheduler of a queue, or will wait, the scheduler must hold
// its queue, which owns it. (The handlers of a worker are in HandlerQueue.swift.) Most handlers are bound on the
// scheduler's own carrier; these are only counted, in a plain word, and share one pin. The count goes down after the
// handler has run, on the scheduler's own carrier. For a handler that is dropped elsewhere it goes down when the drain
// is idle next, and the drain is woken for that.

extension Scheduler {
  /// Counts a handler that a job or a handler binds on the scheduler's own carrier.
  func bindHandler() {
    boundHandlers += 1
    guard !handlersHoldPin else { return }
    handlersHoldPin = true
    // The running job or handler holds the queue.
    pin(nil)
  }

  /// Records that a bound handler has run or never will.
  ///
  /// Any thread.
  func unbindHandler() {
    if isRunningHere {
      boundHandlers -= 1
      return
    }
    // The drain may release the queue as soon as it has seen the count, and the queue may release this scheduler: a
    // separate reference keeps the scheduler until the wake-up is under way.
    let held = Unmanaged.passRetained(self)
    _ = droppedHandlers.wrappingAdd(1, ordering: .acquiringAndReleasing)
    sendTimerWakeup()
    held.release()
  }

  /// Releases the pin if no bound handler is left; called by the drain when it has nothing to do.
  func unpinHandlers() {
    guard handlersHoldPin else { return }
    boundHandlers -= droppedHandlers.exchange(0, ordering: .acquiringAndReleasing)
    guard boundHandlers == 0 else { return }
    handlersHoldPin = false
    unpin()
  }

  /// Sends a handler, without the inbox if on the scheduler's own carrier.
  ///
  /// It never overtakes the handlers that are in the inbox already.
  func sendInOrder(_ message: Inbox.Message) {
    if let handlers { return sendToWorker(message, handlers) }
    if isRunningHere, !inbox.hasMessages { work.append(message) } else { push(message) }
  }
}
