import Synchronization

// The handlers of promises that wait for the scheduler of a queue, or will (a worker's are in HandlerQueue.swift): while there are any, the scheduler must hold its queue, which owns
// it. One that is bound on the scheduler's own turn, as most are, is only counted, in a plain word; together they hold one pin.
// The count goes down when it has run, on its own turn, or, for one that is dropped elsewhere, at the next look of the drain, which is
// made to look.

extension Scheduler {
  /// On its own turn, by a job or a handler.
  func bindHandler() {
    boundHandlers += 1
    guard !handlersHoldPin else { return }
    handlersHoldPin = true
    // The job or the handler that runs has the queue held.
    pin(nil)
  }

  /// A handler that was bound has run or never will.
  ///
  /// Any thread.
  func unbindHandler() {
    if isOwnTurn {
      boundHandlers -= 1
      return
    }
    // The drain may give the queue up as soon as it has seen the count, and the queue this scheduler: a reference of its own
    // holds it until the tick is under way.
    let held = Unmanaged.passRetained(self)
    _ = droppedHandlers.wrappingAdd(1, ordering: .acquiringAndReleasing)
    sendTimerWakeup()
    held.release()
  }

  /// The drain, with nothing to do.
  func unpinHandlers() {
    guard handlersHoldPin else { return }
    boundHandlers -= droppedHandlers.exchange(0, ordering: .acquiringAndReleasing)
    guard boundHandlers == 0 else { return }
    handlersHoldPin = false
    unpin()
  }

  /// Sends a handler: on the scheduler's own turn without the inbox, but behind what has come there before, or one that is
  /// attached after others have been sent would overtake them.
  func sendInOrder(_ message: Inbox.Message) {
    if let handlers { return sendToWorker(message, handlers) }
    if isOwnTurn, !inbox.hasMessages { work.append(message) } else { push(message) }
  }
}
