extension CompletionRef {
  /// The linked callback with `preparesDrop`: that of an actor.
  var callbackThatPreparesDrop: WaitCallback? {
    lock()
    defer { unlock() }
    var waiter = pointee.waiters.first
    while let current = waiter {
      if current.pointee.job == nil, current.pointee.notify == nil {
        let callback = current.pointee.callback.takeUnretainedValue()
        if callback.preparesDrop { return callback }
      }
      waiter = current.pointee.next
    }
    return nil
  }
}
