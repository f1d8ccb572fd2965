// What a dump says about a job that others wait for.

extension AnyJob: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { completion.lockAddress }
  func inspect(_ names: JobNames) -> String { "job \(names.job(self))" }
  func verb(of queue: UInt?) -> String { "await" }
}
