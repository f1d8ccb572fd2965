// What a dump says about a promise.

extension AnyPromise: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { completion.lockAddress }
  func inspect(_ names: JobNames) -> String { "\(identity), created at \(launchSite.description)" }
  func verb(of queue: UInt?) -> String { "await" }
}
