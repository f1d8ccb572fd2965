extension CompletionRef {
  /// The linked callback with `preparesDrop`: that of an actor.
  var callbackThatPreparesDrop: WaitCallback? {
    withLock {
      pointee.waiters.first { $0.pointee.callbackIfAny?.preparesDrop ?? false }?.pointee.callbackIfAny
    }
  }
}
