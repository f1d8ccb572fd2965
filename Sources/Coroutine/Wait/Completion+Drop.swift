extension CompletionRef {
  /// The linked callback that prepares for the end of a job that never runs: an actor's.
  var callbackThatPreparesDrop: WaitCallback? {
    pointee.lock.withLock {
      pointee.waiters.first { $0.pointee.callbackIfAny?.preparesDrop ?? false }?.pointee.callbackIfAny
    }
  }
}
