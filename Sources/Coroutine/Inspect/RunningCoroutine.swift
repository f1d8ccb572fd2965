/// The coroutine that runs on the calling thread, for products that label what it does.
package enum RunningCoroutine {
  /// Its number, and its name as reports show it; nil outside a coroutine.
  ///
  /// Never suspends. One thread-local lookup, and a copy of the name.
  package static var label: (id: UInt64, name: String?)? {
    Carrier.current?.pointee.job?.handle._withUnsafeGuaranteedRef {
      ($0.id, $0.jobName.map { String(cString: $0.cString) })
    }
  }
}
