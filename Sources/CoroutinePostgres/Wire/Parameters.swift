#if Postgres
/// Calls `body` with the parameters of a statement as libpq takes them, all in the binary format.
///
/// The lists are on the stack, if they are short: arrays would cost more than the rest of a small statement.
func withParameters<R>(
  of statement: SQL,
  _ body: (
    Int32, UnsafePointer<UInt32>, UnsafePointer<UnsafePointer<CChar>?>, UnsafePointer<Int32>, UnsafePointer<Int32>
  ) -> R
) -> R {
  let values = statement.values
  let count = values.count
  // An empty value has an address as well: none would be a null.
  let size = values.reduce(1) { $0 + ($1.bytes?.count ?? 0) }
  return withUnsafeTemporaryAllocation(byteCount: size, alignment: 1) { memory in
    withUnsafeTemporaryAllocation(of: UnsafePointer<CChar>?.self, capacity: max(1, count)) { pointers in
      // Lengths, then formats.
      withUnsafeTemporaryAllocation(of: Int32.self, capacity: max(1, 2 * count)) { numbers in
        withUnsafeTemporaryAllocation(of: UInt32.self, capacity: max(1, count)) { types in
          var next = 0
          for (index, value) in values.enumerated() {
            types.initializeElement(at: index, to: value.type)
            numbers.initializeElement(at: index, to: Int32(truncatingIfNeeded: value.bytes?.count ?? 0))
            numbers.initializeElement(at: count + index, to: 1)
            guard let bytes = value.bytes else {
              pointers.initializeElement(at: index, to: nil)
              continue
            }
            let start = UnsafeMutableRawBufferPointer(rebasing: memory[next...])
            start.copyBytes(from: bytes)
            pointers.initializeElement(
              at: index,
              to: UnsafePointer(start.baseAddress!.assumingMemoryBound(to: CChar.self))
            )
            next += bytes.count
          }
          let lengths = UnsafePointer(numbers.baseAddress!)
          return body(
            Int32(truncatingIfNeeded: count),
            types.baseAddress!,
            pointers.baseAddress!,
            lengths,
            lengths + count
          )
        }
      }
    }
  }
}
#endif
