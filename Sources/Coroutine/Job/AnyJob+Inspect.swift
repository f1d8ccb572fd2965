// The description of a job that others wait for, for dumps.

extension AnyJob: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { completion.lockAddress }
  func inspect(_ names: JobNames) -> String { "job \(names.job(self))" }
  func verb(of queue: UInt?) -> String { "await" }
}
