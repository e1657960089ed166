-- What the service of commit 57b29e9 wrote, whose schema is that of the first migration: two run, two wait, one ended.
BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE audit (
	number INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	lease VARCHAR(64) NOT NULL, 
	user VARCHAR(255) NOT NULL, 
	actor VARCHAR(255) NOT NULL, 
	action VARCHAR(32) NOT NULL, 
	why TEXT NOT NULL, 
	PRIMARY KEY (number)
);
INSERT INTO "audit" VALUES(1,1790009000.0,'eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee','eve','gpuspawner','stopped','idle for 30 min');
CREATE TABLE leases (
	id VARCHAR(64) NOT NULL, 
	hub VARCHAR(64) NOT NULL, 
	user_created VARCHAR(64) NOT NULL, 
	server VARCHAR(255) NOT NULL, 
	user VARCHAR(255) NOT NULL, 
	phase VARCHAR(16) NOT NULL, 
	asked_at FLOAT NOT NULL, 
	ended_at FLOAT, 
	document JSON NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "leases" VALUES('eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee','hub-1','eve born','','eve','ended',1790000000.0,1790009000.0,'{"id": "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee", "key": {"hub": "hub-1", "user_created": "eve born", "server": ""}, "user": "eve", "request": {"user": "eve", "template": "lab", "policy": "default", "gpu": "a100", "count": 1, "cpu_cores": 2.0, "memory_bytes": 8589934592, "lifetime_seconds": 28800}, "options": {"template": "lab", "gpu": "a100"}, "asked_at": 1790000000.0, "phase": "ended", "phase_since": 1790000000.0, "attempt": 1, "start_id": "s-eve", "boot_id": "boot", "heard_at": 1790000000.0, "slots": [], "granted_at": 1790000000.0, "running_at": 1790000020.0, "server_started": "", "deadline_at": 1790000100.0, "extended_seconds": 0.0, "keeps_used": 0, "kept_until": null, "warned_seconds": [], "streak": {"idle_seconds": 0.0, "observed_seconds": 0.0, "unknown_in_a_row": 0, "since_busy_seconds": 0.0, "peak_percent": null, "countdown_seconds": null, "mode": "observe", "unknown_since": [], "kind": null, "because": ""}, "sampled_at": null, "failed_starts": 0, "not_before": 0.0, "adopted": false, "reason": "idle", "ended_by": "gpuspawner", "message": "Its GPU did nothing.", "unattended": false, "hub_gone": false, "stop_sent_at": null, "ended_at": 1790009000.0, "token_hash": "", "seen_by_user": false}');
INSERT INTO "leases" VALUES('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','hub-1','ada born','','ada','running',1790000000.0,NULL,'{"id": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "key": {"hub": "hub-1", "user_created": "ada born", "server": ""}, "user": "ada", "request": {"user": "ada", "template": "lab", "policy": "default", "gpu": "a100", "count": 1, "cpu_cores": 2.0, "memory_bytes": 8589934592, "lifetime_seconds": 28800}, "options": {"template": "lab", "gpu": "a100"}, "asked_at": 1790000000.0, "phase": "running", "phase_since": 1790000000.0, "attempt": 1, "start_id": "s-ada", "boot_id": "boot", "heard_at": 1790000000.0, "slots": [{"gpu": "a100-0", "share": "1"}], "granted_at": 1790000000.0, "running_at": 1790000020.0, "server_started": "2026-09-21T13:00:00Z", "deadline_at": 1790028820.0, "extended_seconds": 0.0, "keeps_used": 1, "kept_until": null, "warned_seconds": [], "streak": {"idle_seconds": 600.0, "observed_seconds": 0.0, "unknown_in_a_row": 0, "since_busy_seconds": 0.0, "peak_percent": null, "countdown_seconds": null, "mode": "observe", "unknown_since": [], "kind": null, "because": ""}, "sampled_at": 1790000600.0, "failed_starts": 0, "not_before": 0.0, "adopted": false, "reason": null, "ended_by": "", "message": "", "unattended": false, "hub_gone": false, "stop_sent_at": null, "ended_at": null, "token_hash": "0000000000000000000000000000000000000000000000000000000000000000", "seen_by_user": false}');
INSERT INTO "leases" VALUES('bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb','hub-1','bob born','','bob','reclaiming',1790000000.0,NULL,'{"id": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", "key": {"hub": "hub-1", "user_created": "bob born", "server": ""}, "user": "bob", "request": {"user": "bob", "template": "lab", "policy": "default", "gpu": "a100", "count": 1, "cpu_cores": 2.0, "memory_bytes": 8589934592, "lifetime_seconds": 28800}, "options": {"template": "lab", "gpu": "a100"}, "asked_at": 1790000000.0, "phase": "reclaiming", "phase_since": 1790000000.0, "attempt": 1, "start_id": "s-bob", "boot_id": "boot", "heard_at": 1790000000.0, "slots": [{"gpu": "a100-1", "share": "1/2"}], "granted_at": 1790000000.0, "running_at": 1790000020.0, "server_started": "2026-09-21T13:00:00Z", "deadline_at": 1790028820.0, "extended_seconds": 0.0, "keeps_used": 0, "kept_until": null, "warned_seconds": [3600.0], "streak": {"idle_seconds": 0.0, "observed_seconds": 0.0, "unknown_in_a_row": 0, "since_busy_seconds": 0.0, "peak_percent": null, "countdown_seconds": null, "mode": "observe", "unknown_since": [], "kind": null, "because": ""}, "sampled_at": 1790000600.0, "failed_starts": 0, "not_before": 0.0, "adopted": false, "reason": null, "ended_by": "", "message": "", "unattended": false, "hub_gone": false, "stop_sent_at": null, "ended_at": null, "token_hash": "", "seen_by_user": false}');
INSERT INTO "leases" VALUES('cccccccccccccccccccccccccccccccc','hub-1','cem born','','cem','parked',1790000100.0,NULL,'{"id": "cccccccccccccccccccccccccccccccc", "key": {"hub": "hub-1", "user_created": "cem born", "server": ""}, "user": "cem", "request": {"user": "cem", "template": "lab", "policy": "default", "gpu": "a100", "count": 1, "cpu_cores": 2.0, "memory_bytes": 8589934592, "lifetime_seconds": 28800}, "options": {"template": "lab", "gpu": "a100"}, "asked_at": 1790000100.0, "phase": "parked", "phase_since": 1790000000.0, "attempt": 1, "start_id": "s-cem", "boot_id": "boot", "heard_at": 1790000000.0, "slots": [], "granted_at": null, "running_at": null, "server_started": "", "deadline_at": null, "extended_seconds": 0.0, "keeps_used": 0, "kept_until": null, "warned_seconds": [], "streak": {"idle_seconds": 0.0, "observed_seconds": 0.0, "unknown_in_a_row": 0, "since_busy_seconds": 0.0, "peak_percent": null, "countdown_seconds": null, "mode": "observe", "unknown_since": [], "kind": null, "because": ""}, "sampled_at": null, "failed_starts": 0, "not_before": 0.0, "adopted": false, "reason": null, "ended_by": "", "message": "", "unattended": false, "hub_gone": false, "stop_sent_at": null, "ended_at": null, "token_hash": "", "seen_by_user": false}');
INSERT INTO "leases" VALUES('dddddddddddddddddddddddddddddddd','hub-1','dora born','','dora','queued',1790000200.0,NULL,'{"id": "dddddddddddddddddddddddddddddddd", "key": {"hub": "hub-1", "user_created": "dora born", "server": ""}, "user": "dora", "request": {"user": "dora", "template": "lab", "policy": "default", "gpu": "a100", "count": 1, "cpu_cores": 2.0, "memory_bytes": 8589934592, "lifetime_seconds": 28800}, "options": {"template": "lab", "gpu": "a100"}, "asked_at": 1790000200.0, "phase": "queued", "phase_since": 1790000000.0, "attempt": 1, "start_id": "s-dora", "boot_id": "boot", "heard_at": 1790000000.0, "slots": [], "granted_at": null, "running_at": null, "server_started": "", "deadline_at": null, "extended_seconds": 0.0, "keeps_used": 0, "kept_until": null, "warned_seconds": [], "streak": {"idle_seconds": 0.0, "observed_seconds": 0.0, "unknown_in_a_row": 0, "since_busy_seconds": 0.0, "peak_percent": null, "countdown_seconds": null, "mode": "observe", "unknown_since": [], "kind": null, "because": ""}, "sampled_at": null, "failed_starts": 0, "not_before": 0.0, "adopted": false, "reason": null, "ended_by": "", "message": "", "unattended": false, "hub_gone": false, "stop_sent_at": null, "ended_at": null, "token_hash": "", "seen_by_user": false}');
CREATE TABLE meta (
	name VARCHAR(64) NOT NULL, 
	number INTEGER NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "meta" VALUES('epoch',1);
CREATE TABLE readings (
	number INTEGER NOT NULL, 
	lease VARCHAR(64) NOT NULL, 
	at FLOAT NOT NULL, 
	seconds FLOAT NOT NULL, 
	gpu VARCHAR(128) NOT NULL, 
	utilization_percent FLOAT, 
	memory_used_bytes BIGINT, 
	memory_total_bytes BIGINT, 
	kind VARCHAR(16) NOT NULL, 
	because VARCHAR(255) NOT NULL, 
	kept BOOLEAN NOT NULL, 
	PRIMARY KEY (number)
);
INSERT INTO "readings" VALUES(1,'eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee',1790000060.0,60.0,'a100-2',1.0,1048576,68719476736,'idle','GPU 0 at 1 %',1);
CREATE INDEX ix_leases_user ON leases (user, asked_at);
CREATE UNIQUE INDEX uq_leases_live_key ON leases (hub, user_created, server) WHERE phase <> 'ended';
CREATE INDEX ix_readings_lease ON readings (lease, at);
CREATE INDEX ix_readings_at ON readings (at);
CREATE INDEX ix_audit_lease ON audit (lease);
COMMIT;
