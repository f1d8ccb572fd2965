import Coroutine
import Glibc

/// A program that runs beside a test.
enum Peer {
  struct End: Sendable {
    let status: Int32
    let output: [UInt8]
  }

  /// Whether a program is in PATH.
  static func has(_ program: String) -> Bool {
    let folders = getenv("PATH").map { String(cString: $0) } ?? ""
    return folders.split(separator: ":").contains { access("\($0)/\(program)", X_OK) == 0 }
  }

  static func run(_ program: String, _ arguments: String..., input: [UInt8] = []) throws -> End {
    try run(program, arguments, input: input)
  }

  /// Runs a program to its end, on a thread for calls that block.
  ///
  /// Its input and its output are files: nobody has to write the one while the other one is read.
  static func run(_ program: String, _ arguments: [String], input: [UInt8] = []) throws -> End {
    try co_blocking {
      let base = "/tmp/coroutine-peer-\(getpid())-\(UInt64.random(in: 0 ... .max))"
      let (source, output) = ("\(base).in", "\(base).out")
      defer {
        unlink(source)
        unlink(output)
      }
      try write(input, to: source)
      var actions = posix_spawn_file_actions_t()
      posix_spawn_file_actions_init(&actions)
      defer { posix_spawn_file_actions_destroy(&actions) }
      posix_spawn_file_actions_addopen(&actions, 0, source, O_RDONLY, 0)
      posix_spawn_file_actions_addopen(&actions, 1, output, O_WRONLY | O_CREAT | O_TRUNC, 0o600)
      // Keeps descriptors of this process from a program: sockets, say, at whose ends other tests wait for an end.
      // What other tests open meanwhile gets the lowest numbers that are free.
      let end = try highestDescriptor() + 4_096
      for number in 3..<end { posix_spawn_file_actions_addclose(&actions, number) }
      var words = ([program] + arguments).map { strdup($0) } + [nil]
      defer { for word in words { free(word) } }
      var child: pid_t = 0
      let code = posix_spawnp(&child, program, &actions, nil, &words, environ)
      guard code == 0 else { throw Failure(text: "\(program) did not start: error \(code)") }
      var status: Int32 = 0
      while waitpid(child, &status, 0) < 0 && errno == EINTR {}
      return End(status: status, output: try read(output))
    }
  }

  /// The highest number of an open descriptor of this process.
  ///
  /// The limit for them may be a billion, and Swift does not see posix_spawn_file_actions_addclosefrom_np.
  private static func highestDescriptor() throws -> Int32 {
    guard let folder = opendir("/proc/self/fd") else { throw Failure(text: "/proc/self/fd cannot be read") }
    defer { closedir(folder) }
    var highest: Int32 = 0
    while let entry = readdir(folder) {
      let name = UnsafeRawPointer(entry) + MemoryLayout<dirent>.offset(of: \.d_name)!
      highest = max(highest, atoi(name.assumingMemoryBound(to: CChar.self)))
    }
    return highest
  }

  struct Failure: Error { let text: String }

  static func write(_ bytes: [UInt8], to path: String) throws {
    guard let file = fopen(path, "w") else { throw Failure(text: "\(path) cannot be written") }
    let count = fwrite(bytes, 1, bytes.count, file)
    if fclose(file) != 0 || count != bytes.count { throw Failure(text: "\(path) was not written") }
  }

  private static func read(_ path: String) throws -> [UInt8] {
    guard let file = fopen(path, "r") else { throw Failure(text: "\(path) cannot be read") }
    defer { fclose(file) }
    var (all, part) = ([UInt8](), [UInt8](repeating: 0, count: 65_536))
    while true {
      let count = fread(&part, 1, part.count, file)
      if count == 0 { return all }
      all += part[..<count]
    }
  }
}
