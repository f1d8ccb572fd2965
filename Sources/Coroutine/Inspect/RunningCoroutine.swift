/// The coroutine that runs on the calling thread, for products that label what it does.
package enum RunningCoroutine {
  /// Its number and name; nil outside a coroutine.
  ///
  /// Never suspends. One thread-local lookup, and no reference is counted.
  package static var label: (id: UInt64, name: String?)? {
    Carrier.current?.pointee.job?.handle._withUnsafeGuaranteedRef { ($0.id, $0.name) }
  }
}
