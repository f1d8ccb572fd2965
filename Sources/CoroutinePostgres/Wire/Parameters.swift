#if Postgres
/// Calls `body` with the parameters of a statement as libpq takes them, all in the binary format.
///
/// The lists are on the stack, if they are short: arrays would cost more than the rest of a small statement. The values
/// stay where they are. The closures get elements alone: for one that has the statement, references to its arrays are
/// counted.
func withParameters<R>(
  of statement: SQL,
  _ body: (
    _ count: Int32, _ types: UnsafePointer<UInt32>, _ values: UnsafePointer<UnsafePointer<CChar>?>,
    _ lengths: UnsafePointer<Int32>, _ formats: UnsafePointer<Int32>
  ) -> R
) -> R {
  statement.values.withUnsafeBufferPointer { values in
    statement.bytes.withUnsafeBytes { bytes in
      // In this order, so that each list is aligned: addresses, types, lengths, formats.
      let count = values.count
      return withUnsafeTemporaryAllocation(byteCount: max(1, count) * (8 + 3 * 4), alignment: 8) { lists in
        let start = lists.baseAddress!
        let addresses = start.assumingMemoryBound(to: UnsafePointer<CChar>?.self)
        let types = (start + count * 8).assumingMemoryBound(to: UInt32.self)
        let lengths = (start + count * 12).assumingMemoryBound(to: Int32.self)
        let formats = lengths + count
        for (index, value) in values.enumerated() {
          // An empty value has an address as well: none would be a null.
          let address = (bytes.baseAddress ?? UnsafeRawPointer(start)) + value.start
          (addresses + index).initialize(to: value.count < 0 ? nil : address.assumingMemoryBound(to: CChar.self))
          (types + index).initialize(to: value.type)
          (lengths + index).initialize(to: Int32(truncatingIfNeeded: max(0, value.count)))
          (formats + index).initialize(to: 1)
        }
        return body(Int32(truncatingIfNeeded: count), types, addresses, lengths, formats)
      }
    }
  }
}

extension SQL {
  /// Throws why a value cannot be sent.
  func checkValues() throws {
    for value in values {
      if value.type == PostgresType.jsonb { try JSONFormat.check(bytes(of: value)) }
      if value.count > Int32.max {
        let rule = "a value has at most 2147483647 bytes, and one of this statement has \(value.count)"
        throw PostgresError(.decoding, rule)
      }
    }
  }
}
#endif
