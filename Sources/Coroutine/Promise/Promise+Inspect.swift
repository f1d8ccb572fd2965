// The description of a promise, for dumps.

extension AnyPromise: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { completion.lockAddress }
  func inspect(_ names: JobNames) -> String { "\(identity), created at \(launchSite.description)" }
  func verb(of queue: UInt?) -> String { "await" }
}
