"""Relations of pg_catalog that are always empty: Tidemill has no such objects."""

from __future__ import annotations

from tidemill.engine.relations.pg.spec import spec
from tidemill.engine.relations.sources import Spec

_EMPTY: dict[str, str] = {
    "pg_inherits": "inhrelid oid, inhparent oid, inhseqno int4, inhdetachpending bool",
    "pg_trigger": """
        oid oid, tgrelid oid, tgparentid oid, tgname name, tgfoid oid, tgtype int2, tgenabled char,
        tgisinternal bool, tgconstrrelid oid, tgconstrindid oid, tgconstraint oid, tgdeferrable bool,
        tginitdeferred bool, tgnargs int2, tgattr int2vector, tgargs text, tgqual text, tgoldtable name,
        tgnewtable name""",
    "pg_policy": """
        oid oid, polname name, polrelid oid, polcmd char, polpermissive bool, polroles oid[], polqual
        text, polwithcheck text""",
    "pg_policies": """
        schemaname name, tablename name, policyname name, permissive text, roles name[], cmd text, qual
        text, with_check text""",
    "pg_publication": """
        oid oid, pubname name, pubowner oid, puballtables bool, pubinsert bool, pubupdate bool, pubdelete
        bool, pubtruncate bool, pubviaroot bool""",
    "pg_publication_rel": "oid oid, prpubid oid, prrelid oid, prqual text, prattrs int2[]",
    "pg_publication_namespace": "oid oid, pnpubid oid, pnnspid oid",
    "pg_publication_tables": "pubname name, schemaname name, tablename name, attnames name[], rowfilter text",
    "pg_subscription": """
        oid oid, subdbid oid, subskiplsn text, subname name, subowner oid, subenabled bool, subbinary
        bool, substream char, subtwophasestate char, subdisableonerr bool, subpasswordrequired bool,
        subrunasowner bool, subconninfo text, subslotname name, subsynccommit text, subpublications
        text[], suborigin text""",
    "pg_statistic_ext": """
        oid oid, stxrelid oid, stxname name, stxnamespace oid, stxowner oid, stxstattarget int4, stxkeys
        int2[], stxkind char[], stxexprs text""",
    "pg_rewrite": """
        oid oid, rulename name, ev_class oid, ev_type char, ev_enabled char, is_instead bool, ev_qual
        text, ev_action text""",
    "pg_range": """
        rngtypid oid, rngsubtype oid, rngmultitypid oid, rngcollation oid, rngsubopc oid, rngcanonical
        regproc, rngsubdiff regproc""",
    "pg_enum": "oid oid, enumtypid oid, enumsortorder float4, enumlabel name",
    "pg_sequence": """
        seqrelid oid, seqtypid oid, seqstart int8, seqincrement int8, seqmax int8, seqmin int8, seqcache
        int8, seqcycle bool""",
    "pg_sequences": """
        schemaname name, sequencename name, sequenceowner name, data_type oid, start_value int8, min_value
        int8, max_value int8, increment_by int8, cycle bool, cache_size int8, last_value int8""",
    "pg_extension": """
        oid oid, extname name, extowner oid, extnamespace oid, extrelocatable bool, extversion text,
        extconfig oid[], extcondition text[]""",
    "pg_available_extensions": "name name, default_version text, installed_version text, comment text",
    "pg_available_extension_versions": """
        name name, version text, installed bool, superuser bool, trusted bool, relocatable bool, schema name,
        requires name[], comment text""",
    "pg_rules": "schemaname name, tablename name, rulename name, definition text",
    "pg_foreign_table": "ftrelid oid, ftserver oid, ftoptions text[]",
    "pg_foreign_server": """
        oid oid, srvname name, srvowner oid, srvfdw oid, srvtype text, srvversion text, srvacl text[],
        srvoptions text[]""",
    "pg_foreign_data_wrapper": """
        oid oid, fdwname name, fdwowner oid, fdwhandler oid, fdwvalidator oid, fdwacl text[], fdwoptions
        text[]""",
    "pg_user_mappings": "umid oid, srvid oid, srvname name, umuser oid, usename name, umoptions text[]",
    "pg_partitioned_table": """
        partrelid oid, partstrat char, partnatts int2, partdefid oid, partattrs int2[], partclass oid[],
        partcollation oid[], partexprs text""",
    "pg_init_privs": "objoid oid, classoid oid, objsubid int4, privtype char, initprivs text[]",
    "pg_shdepend": """
        dbid oid, classid oid, objid oid, objsubid int4, refclassid oid, refobjid oid, deptype char""",
    "pg_seclabel": "objoid oid, classoid oid, objsubid int4, provider text, label text",
    "pg_default_acl": "oid oid, defaclrole oid, defaclnamespace oid, defaclobjtype char, defaclacl text[]",
    "pg_db_role_setting": "setdatabase oid, setrole oid, setconfig text[]",
    "pg_parameter_acl": "oid oid, parname text, paracl text[]",
    "pg_event_trigger": """
        oid oid, evtname name, evtevent name, evtowner oid, evtfoid oid, evtenabled char, evttags text[]""",
    "pg_conversion": """
        oid oid, conname name, connamespace oid, conowner oid, conforencoding int4, contoencoding int4,
        conproc regproc, condefault bool""",
    "pg_opclass": """
        oid oid, opcmethod oid, opcname name, opcnamespace oid, opcowner oid, opcfamily oid, opcintype
        oid, opcdefault bool, opckeytype oid""",
    "pg_opfamily": "oid oid, opfmethod oid, opfname name, opfnamespace oid, opfowner oid",
    "pg_amop": """
        oid oid, amopfamily oid, amoplefttype oid, amoprighttype oid, amopstrategy int2, amoppurpose char,
        amopopr oid, amopmethod oid, amopsortfamily oid""",
    "pg_amproc": """
        oid oid, amprocfamily oid, amproclefttype oid, amprocrighttype oid, amprocnum int2, amproc oid""",
    "pg_largeobject_metadata": "oid oid, lomowner oid, lomacl text[]",
    "pg_prepared_xacts": "transaction oid, gid text, prepared timestamptz, owner name, database name",
    "pg_locks": """
        locktype text, database oid, relation oid, page int4, tuple int2, virtualxid text, transactionid
        oid, classid oid, objid oid, objsubid int2, virtualtransaction text, pid int4, mode text, granted
        bool, fastpath bool, waitstart timestamptz""",
    "pg_ts_config": "oid oid, cfgname name, cfgnamespace oid, cfgowner oid, cfgparser oid",
    "pg_ts_dict": """
        oid oid, dictname name, dictnamespace oid, dictowner oid, dicttemplate oid, dictinitoption text""",
    "pg_ts_parser": "oid oid, prsname name, prsnamespace oid",
    "pg_ts_template": "oid oid, tmplname name, tmplnamespace oid",
    "pg_transform": "oid oid, trftype oid, trflang oid, trffromsql oid, trftosql oid",
    "pg_stat_user_tables": """
        relid oid, schemaname name, relname name, seq_scan int8, seq_tup_read int8, idx_scan int8,
        idx_tup_fetch int8, n_tup_ins int8, n_tup_upd int8, n_tup_del int8, n_live_tup int8, n_dead_tup
        int8, last_vacuum timestamptz, last_analyze timestamptz""",
}

EMPTY_SPECS: list[Spec] = [spec("pg_catalog", name, columns) for name, columns in _EMPTY.items()]
