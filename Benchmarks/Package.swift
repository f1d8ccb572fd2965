// swift-tools-version:6.3
import PackageDescription

// The benchmarks are a package of their own so that a package that depends on the library builds none of them. They
// need no other package: README.md says why the counts are taken by a plain gate and not by a benchmarking framework.
//   CO_WERROR  set: warnings are errors.
//   CO_PEERS   set: the Swift programs that we are compared with are there as well, and with them the package of
//              channels that Swift Concurrency needs for it, and SwiftNIO; also our servers on SwiftNIO. `run` and
//              `run-net` set it, with a scratch path of its own.
//   CO_HTTP    set: the servers with a whole HTTP stack are there as well, and with them Hummingbird and our package of
//              examples. `run-net` sets it, with another scratch path.
//   CO_OWN     set: servers and a client on CoroutineHTTP are there as well, which need llhttp and OpenSSL. `run-net`
//              sets it, with a third scratch path.
//   CO_POSTGRES  set: the load of a PostgreSQL server is there as well, which needs libpq. `run-postgres` sets it, with
//              a scratch path of its own.
let warningsAreErrors = Context.environment["CO_WERROR"] != nil
let withPeers = Context.environment["CO_PEERS"] != nil
let withHTTP = Context.environment["CO_HTTP"] != nil
let withOwn = Context.environment["CO_OWN"] != nil
let withPostgres = Context.environment["CO_POSTGRES"] != nil
let coroutine: Target.Dependency = .product(name: "Coroutine", package: "coroutine")
let coroutineNet: Target.Dependency = .product(name: "CoroutineNet", package: "coroutine")

let traits: Set<Package.Dependency.Trait> =
  withPostgres ? ["Postgres"] : withOwn ? ["HTTP"] : withPeers || withHTTP ? ["NIO"] : [.defaults]

let package = Package(
  name: "benchmarks",
  dependencies: [
    // The name is given because the folder may be called anything.
    .package(name: "coroutine", path: "../", traits: traits)
  ],
  targets: [
    // Loops that must be C or C++: the bare switch of Boost, and the C core without Swift around it.
    .target(name: "CProbe", dependencies: [coroutine]),
    // malloc and its kin, counted. Only `allocations` links it: counting would cost the other program time.
    .target(name: "CMallocCount"),
    // Clocks, memory, options and the loop of rounds.
    .target(name: "Harness"),
    // Running workloads on a queue: what all programs here share but the peers.
    .target(name: "Driving", dependencies: [coroutine]),
    // What an operation costs by how many coroutines live.
    .executableTarget(
      name: "curves",
      dependencies: ["CProbe", "Driving", "Harness", coroutine],
      path: "Sources/Curves"
    ),
    .executableTarget(
      name: "workloads",
      dependencies: ["CProbe", "Driving", "Harness", coroutine],
      path: "Sources/Workloads"
    ),
    // For `run-inspect`: what snapshots, metrics and the recorder cost, and how soon a stall and a deadlock are named.
    .executableTarget(name: "inspecting", dependencies: ["Harness", coroutine], path: "Sources/Inspecting"),
    // What the worlds of CoroutineTesting cost.
    .executableTarget(
      name: "worlds",
      dependencies: ["CProbe", "Harness", coroutine, .product(name: "CoroutineTesting", package: "coroutine")],
      path: "Sources/Worlds"
    ),
    .executableTarget(
      name: "allocations",
      dependencies: ["CMallocCount", "CProbe", "Harness", coroutine],
      path: "Sources/Allocations"
    ),
    // Checks the table of levels in the article "Memory and stacks".
    .executableTarget(name: "levels", dependencies: [coroutine], path: "Sources/Levels"),
    // For `run-net`: our servers, the load, and the bare epoll loop in C, which they are compared with.
    .target(name: "MinimalHTTP"),
    .executableTarget(
      name: "net-server",
      dependencies: ["Harness", "MinimalHTTP", coroutine, coroutineNet],
      path: "Sources/NetServer"
    ),
    // For `run-kv`: a key-value server that speaks Redis's protocol.
    .executableTarget(
      name: "kv-server",
      dependencies: ["Harness", coroutine, coroutineNet],
      path: "Sources/KeyValue"
    ),
    .executableTarget(name: "net-load", path: "Sources/NetLoad", cSettings: [.define("_GNU_SOURCE")]),
    .executableTarget(name: "epoll-peer", path: "Peers/epoll", cSettings: [.define("_GNU_SOURCE")]),
  ],
  swiftLanguageModes: [.v6],
  cxxLanguageStandard: .cxx17
)

let coroutineNIO: Target.Dependency = .product(name: "CoroutineNIO", package: "coroutine")
let nio: [Target.Dependency] = [
  .product(name: "NIOCore", package: "swift-nio"), .product(name: "NIOPosix", package: "swift-nio"),
]
if withPeers || withHTTP {
  package.dependencies.append(.package(url: "https://github.com/apple/swift-nio", from: "2.101.0"))
}

if withPeers {
  package.dependencies.append(.package(url: "https://github.com/apple/swift-async-algorithms", from: "1.1.4"))
  let channels: Target.Dependency = .product(name: "AsyncAlgorithms", package: "swift-async-algorithms")
  package.targets += [
    .executableTarget(name: "swift-peer", dependencies: ["Harness", channels], path: "Peers/swift"),
    .executableTarget(
      name: "nio-peer",
      dependencies: ["Harness"] + nio,
      path: "Peers/nio"
    ),
    .executableTarget(
      name: "nio-server",
      dependencies: ["Harness", "MinimalHTTP", coroutine, coroutineNIO] + nio,
      path: "Peers/nio-net"
    ),
    .executableTarget(name: "gcd-peer", dependencies: ["Harness"], path: "Peers/gcd"),
  ]
}

if withHTTP {
  package.dependencies += [
    .package(name: "examples", path: "../Examples"),
    .package(url: "https://github.com/apple/swift-log", from: "1.14.0"),
    .package(url: "https://github.com/hummingbird-project/hummingbird", from: "2.28.0", traits: ["FullFoundation"]),
  ]
  package.targets.append(
    .executableTarget(
      name: "http-server",
      dependencies: [
        "Harness", coroutine, coroutineNIO, .product(name: "Hummingbird", package: "hummingbird"),
        .product(name: "HummingbirdCoroutines", package: "examples"), .product(name: "Logging", package: "swift-log"),
        .product(name: "NIOHTTP1", package: "swift-nio"),
      ] + nio,
      path: "Peers/http-net"
    )
  )
}

if withPostgres {
  package.targets.append(
    .executableTarget(
      name: "postgres-load",
      dependencies: [
        "Harness", coroutine, coroutineNet, .product(name: "CoroutinePostgres", package: "coroutine"),
        .product(name: "CoroutineWork", package: "coroutine"),
      ],
      path: "Sources/PostgresLoad"
    )
  )
}

if withOwn {
  package.dependencies.append(.package(url: "https://github.com/apple/swift-http-types", from: "1.8.0"))
  package.targets.append(
    .executableTarget(
      name: "http-own",
      dependencies: [
        "Harness", coroutine, coroutineNet, .product(name: "CoroutineHTTP", package: "coroutine"),
        .product(name: "HTTPTypes", package: "swift-http-types"),
      ],
      path: "Peers/http-own"
    )
  )
}

for target in package.targets {
  let strict = warningsAreErrors
  target.cSettings =
    (target.cSettings ?? []) + [.enableWarning("all"), .enableWarning("extra")]
    + (strict ? [.treatAllWarnings(as: .error)] : [])
  target.cxxSettings =
    [.enableWarning("all"), .enableWarning("extra")] + (strict ? [.treatAllWarnings(as: .error)] : [])
  target.swiftSettings =
    [
      .enableUpcomingFeature("ExistentialAny"),
      .enableUpcomingFeature("InternalImportsByDefault"),
      .enableUpcomingFeature("MemberImportVisibility"),
      .enableUpcomingFeature("NonisolatedNonsendingByDefault"),
    ] + (strict ? [.treatAllWarnings(as: .error)] : [])
}
