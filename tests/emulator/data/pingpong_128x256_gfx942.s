; C = A · Bᵀ, f16 → f32, tile 128x256x64, 8 waves in ping-pong. Emitted by LLVM (llvmlite 0.50) from IR that the
; project's prototype of the AMD target generated.
	.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
	.amdhsa_code_object_version 5
	.text
	.globl	gemm
	.p2align	8
	.type	gemm,@function
gemm:
	s_load_dwordx4 s[8:11], s[0:1], 0x18
	s_load_dwordx4 s[20:23], s[0:1], 0x0
	s_load_dwordx2 s[4:5], s[0:1], 0x10
	s_lshl_b32 s16, s3, 7
	v_lshrrev_b32_e32 v1, 3, v0
	v_or_b32_e32 v2, s16, v1
	v_lshlrev_b32_e32 v3, 3, v0
	s_waitcnt lgkmcnt(0)
	v_mul_lo_u32 v2, s10, v2
	v_and_b32_e32 v3, 56, v3
	v_add_lshl_u32 v64, v2, v3, 1
	v_or_b32_e32 v2, 64, v1
	s_lshl_b32 s11, s2, 8
	v_or_b32_e32 v4, s16, v2
	v_mul_lo_u32 v4, s10, v4
	v_or_b32_e32 v2, s11, v2
	v_add_lshl_u32 v65, v4, v3, 1
	v_or_b32_e32 v4, s11, v1
	v_mul_lo_u32 v2, s10, v2
	v_add_lshl_u32 v67, v2, v3, 1
	v_or_b32_e32 v2, 0x80, v4
	v_mul_lo_u32 v2, s10, v2
	s_mul_i32 s0, s8, s10
	v_add_lshl_u32 v68, v2, v3, 1
	v_or_b32_e32 v2, 0xc0, v4
	s_and_b32 s1, s21, 0xffff
	s_lshl_b32 s2, s0, 1
	s_mov_b32 s3, 0x27000
	s_mov_b32 s0, s20
	s_mul_i32 s6, s9, s10
	v_mul_lo_u32 v5, s10, v4
	v_mul_lo_u32 v2, s10, v2
	s_and_b32 s13, s23, 0xffff
	s_lshl_b32 s14, s6, 1
	s_mov_b32 s12, s22
	s_mov_b32 s15, s3
	v_add_lshl_u32 v66, v5, v3, 1
	v_add_lshl_u32 v69, v2, v3, 1
	buffer_load_dwordx4 v[4:7], v64, s[0:3], 0 offen
	buffer_load_dwordx4 v[8:11], v65, s[0:3], 0 offen
	buffer_load_dwordx4 v[12:15], v66, s[12:15], 0 offen
	buffer_load_dwordx4 v[16:19], v67, s[12:15], 0 offen
	buffer_load_dwordx4 v[20:23], v68, s[12:15], 0 offen
	buffer_load_dwordx4 v[24:27], v69, s[12:15], 0 offen
	v_readfirstlane_b32 s19, v0
	v_xor_b32_e32 v2, v1, v0
	v_lshlrev_b32_e32 v2, 4, v2
	s_cmpk_lt_u32 s19, 0x100
	v_and_b32_e32 v2, 0x70, v2
	s_cselect_b64 s[6:7], -1, 0
	s_mov_b32 s17, 0
	v_lshl_or_b32 v70, v1, 7, v2
	s_and_b64 vcc, exec, s[6:7]
	s_waitcnt vmcnt(5)
	ds_write_b128 v70, v[4:7] offset:32768
	s_waitcnt vmcnt(4)
	ds_write_b128 v70, v[8:11] offset:40960
	s_waitcnt vmcnt(3)
	ds_write_b128 v70, v[12:15]
	s_waitcnt vmcnt(2)
	ds_write_b128 v70, v[16:19] offset:8192
	s_waitcnt vmcnt(1)
	ds_write_b128 v70, v[20:23] offset:16384
	s_waitcnt vmcnt(0)
	ds_write_b128 v70, v[24:27] offset:24576
	s_waitcnt lgkmcnt(0)
	s_barrier
	s_cbranch_vccnz .LBB0_2
	s_barrier
.LBB0_2:
	v_bfe_u32 v72, v0, 4, 2
	s_lshr_b32 s18, s19, 2
	v_and_b32_e32 v71, 15, v0
	v_and_b32_e32 v0, 7, v0
	s_and_b32 s18, s18, 0x3fffffc0
	v_or_b32_e32 v3, 4, v72
	s_and_b32 s19, s19, 0xc0
	v_or_b32_e32 v73, 0x8000, v70
	v_or_b32_e32 v1, s18, v71
	v_xor_b32_e32 v2, v72, v0
	v_xor_b32_e32 v0, v3, v0
	v_or_b32_e32 v3, s19, v71
	s_lshl_b32 s10, s10, 1
	v_mov_b32_e32 v4, 0x8000
	v_lshl_add_u32 v1, v1, 7, v4
	v_lshlrev_b32_e32 v2, 4, v2
	v_lshlrev_b32_e32 v3, 7, v3
	v_lshlrev_b32_e32 v0, 4, v0
	v_or_b32_e32 v74, v1, v2
	v_or_b32_e32 v75, v3, v2
	v_or_b32_e32 v76, v1, v0
	v_or_b32_e32 v77, v3, v0
	v_mov_b32_e32 v0, 0
	v_mov_b32_e32 v1, 0
	v_mov_b32_e32 v2, 0
	v_mov_b32_e32 v3, 0
	v_mov_b32_e32 v4, 0
	v_mov_b32_e32 v5, 0
	v_mov_b32_e32 v6, 0
	v_mov_b32_e32 v7, 0
	v_mov_b32_e32 v8, 0
	v_mov_b32_e32 v9, 0
	v_mov_b32_e32 v10, 0
	v_mov_b32_e32 v11, 0
	v_mov_b32_e32 v12, 0
	v_mov_b32_e32 v13, 0
	v_mov_b32_e32 v14, 0
	v_mov_b32_e32 v15, 0
	v_mov_b32_e32 v16, 0
	v_mov_b32_e32 v17, 0
	v_mov_b32_e32 v18, 0
	v_mov_b32_e32 v19, 0
	v_mov_b32_e32 v20, 0
	v_mov_b32_e32 v21, 0
	v_mov_b32_e32 v22, 0
	v_mov_b32_e32 v23, 0
	v_mov_b32_e32 v24, 0
	v_mov_b32_e32 v25, 0
	v_mov_b32_e32 v26, 0
	v_mov_b32_e32 v27, 0
	v_mov_b32_e32 v28, 0
	v_mov_b32_e32 v29, 0
	v_mov_b32_e32 v30, 0
	v_mov_b32_e32 v31, 0
	v_mov_b32_e32 v32, 0
	v_mov_b32_e32 v33, 0
	v_mov_b32_e32 v34, 0
	v_mov_b32_e32 v35, 0
	v_mov_b32_e32 v36, 0
	v_mov_b32_e32 v37, 0
	v_mov_b32_e32 v38, 0
	v_mov_b32_e32 v39, 0
	v_mov_b32_e32 v40, 0
	v_mov_b32_e32 v41, 0
	v_mov_b32_e32 v42, 0
	v_mov_b32_e32 v43, 0
	v_mov_b32_e32 v44, 0
	v_mov_b32_e32 v45, 0
	v_mov_b32_e32 v46, 0
	v_mov_b32_e32 v47, 0
	v_mov_b32_e32 v48, 0
	v_mov_b32_e32 v49, 0
	v_mov_b32_e32 v50, 0
	v_mov_b32_e32 v51, 0
	v_mov_b32_e32 v52, 0
	v_mov_b32_e32 v53, 0
	v_mov_b32_e32 v54, 0
	v_mov_b32_e32 v55, 0
	v_mov_b32_e32 v56, 0
	v_mov_b32_e32 v57, 0
	v_mov_b32_e32 v58, 0
	v_mov_b32_e32 v59, 0
	v_mov_b32_e32 v60, 0
	v_mov_b32_e32 v61, 0
	v_mov_b32_e32 v62, 0
	v_mov_b32_e32 v63, 0
.LBB0_3:
	ds_read_b128 v[78:81], v74
	ds_read_b128 v[82:85], v74 offset:2048
	ds_read_b128 v[86:89], v74 offset:4096
	ds_read_b128 v[90:93], v74 offset:6144
	ds_read_b128 v[94:97], v75
	ds_read_b128 v[98:101], v75 offset:2048
	ds_read_b128 v[102:105], v75 offset:4096
	ds_read_b128 v[106:109], v75 offset:6144
	s_addk_i32 s17, 0x80
	buffer_load_dwordx4 v[110:113], v64, s[0:3], s17 offen
	buffer_load_dwordx4 v[114:117], v65, s[0:3], s17 offen
	ds_read_b128 v[118:121], v76
	ds_read_b128 v[122:125], v76 offset:2048
	ds_read_b128 v[126:129], v76 offset:4096
	ds_read_b128 v[130:133], v76 offset:6144
	ds_read_b128 v[134:137], v77
	ds_read_b128 v[138:141], v77 offset:2048
	ds_read_b128 v[142:145], v77 offset:4096
	ds_read_b128 v[146:149], v77 offset:6144
	buffer_load_dwordx4 v[150:153], v66, s[12:15], s17 offen
	buffer_load_dwordx4 v[154:157], v67, s[12:15], s17 offen
	buffer_load_dwordx4 v[158:161], v68, s[12:15], s17 offen
	buffer_load_dwordx4 v[162:165], v69, s[12:15], s17 offen
	s_waitcnt lgkmcnt(0)
	s_barrier
	s_setprio 1
	v_mfma_f32_16x16x16_f16 v[60:63], v[94:95], v[78:79], v[60:63]
	v_mfma_f32_16x16x16_f16 v[56:59], v[98:99], v[78:79], v[56:59]
	v_mfma_f32_16x16x16_f16 v[52:55], v[102:103], v[78:79], v[52:55]
	v_mfma_f32_16x16x16_f16 v[48:51], v[106:107], v[78:79], v[48:51]
	v_mfma_f32_16x16x16_f16 v[44:47], v[94:95], v[82:83], v[44:47]
	v_mfma_f32_16x16x16_f16 v[40:43], v[98:99], v[82:83], v[40:43]
	v_mfma_f32_16x16x16_f16 v[36:39], v[102:103], v[82:83], v[36:39]
	v_mfma_f32_16x16x16_f16 v[32:35], v[106:107], v[82:83], v[32:35]
	v_mfma_f32_16x16x16_f16 v[28:31], v[94:95], v[86:87], v[28:31]
	v_mfma_f32_16x16x16_f16 v[24:27], v[98:99], v[86:87], v[24:27]
	v_mfma_f32_16x16x16_f16 v[20:23], v[102:103], v[86:87], v[20:23]
	v_mfma_f32_16x16x16_f16 v[16:19], v[106:107], v[86:87], v[16:19]
	v_mfma_f32_16x16x16_f16 v[12:15], v[94:95], v[90:91], v[12:15]
	v_mfma_f32_16x16x16_f16 v[8:11], v[98:99], v[90:91], v[8:11]
	v_mfma_f32_16x16x16_f16 v[4:7], v[102:103], v[90:91], v[4:7]
	v_mfma_f32_16x16x16_f16 v[0:3], v[106:107], v[90:91], v[0:3]
	v_mfma_f32_16x16x16_f16 v[60:63], v[96:97], v[80:81], v[60:63]
	v_mfma_f32_16x16x16_f16 v[56:59], v[100:101], v[80:81], v[56:59]
	v_mfma_f32_16x16x16_f16 v[52:55], v[104:105], v[80:81], v[52:55]
	v_mfma_f32_16x16x16_f16 v[48:51], v[108:109], v[80:81], v[48:51]
	v_mfma_f32_16x16x16_f16 v[44:47], v[96:97], v[84:85], v[44:47]
	v_mfma_f32_16x16x16_f16 v[40:43], v[100:101], v[84:85], v[40:43]
	v_mfma_f32_16x16x16_f16 v[36:39], v[104:105], v[84:85], v[36:39]
	v_mfma_f32_16x16x16_f16 v[32:35], v[108:109], v[84:85], v[32:35]
	v_mfma_f32_16x16x16_f16 v[28:31], v[96:97], v[88:89], v[28:31]
	v_mfma_f32_16x16x16_f16 v[24:27], v[100:101], v[88:89], v[24:27]
	v_mfma_f32_16x16x16_f16 v[20:23], v[104:105], v[88:89], v[20:23]
	v_mfma_f32_16x16x16_f16 v[16:19], v[108:109], v[88:89], v[16:19]
	v_mfma_f32_16x16x16_f16 v[12:15], v[96:97], v[92:93], v[12:15]
	v_mfma_f32_16x16x16_f16 v[8:11], v[100:101], v[92:93], v[8:11]
	v_mfma_f32_16x16x16_f16 v[4:7], v[104:105], v[92:93], v[4:7]
	v_mfma_f32_16x16x16_f16 v[0:3], v[108:109], v[92:93], v[0:3]
	s_setprio 0
	s_barrier
	s_waitcnt vmcnt(5)
	ds_write_b128 v73, v[110:113]
	s_waitcnt vmcnt(4)
	ds_write_b128 v73, v[114:117] offset:8192
	s_waitcnt vmcnt(3)
	ds_write_b128 v70, v[150:153]
	s_waitcnt vmcnt(2)
	ds_write_b128 v70, v[154:157] offset:8192
	s_waitcnt vmcnt(1)
	ds_write_b128 v70, v[158:161] offset:16384
	s_waitcnt vmcnt(0)
	ds_write_b128 v70, v[162:165] offset:24576
	s_waitcnt lgkmcnt(0)
	s_barrier
	s_setprio 1
	v_mfma_f32_16x16x16_f16 v[60:63], v[134:135], v[118:119], v[60:63]
	v_mfma_f32_16x16x16_f16 v[56:59], v[138:139], v[118:119], v[56:59]
	v_mfma_f32_16x16x16_f16 v[52:55], v[142:143], v[118:119], v[52:55]
	v_mfma_f32_16x16x16_f16 v[48:51], v[146:147], v[118:119], v[48:51]
	v_mfma_f32_16x16x16_f16 v[44:47], v[134:135], v[122:123], v[44:47]
	v_mfma_f32_16x16x16_f16 v[40:43], v[138:139], v[122:123], v[40:43]
	v_mfma_f32_16x16x16_f16 v[36:39], v[142:143], v[122:123], v[36:39]
	v_mfma_f32_16x16x16_f16 v[32:35], v[146:147], v[122:123], v[32:35]
	v_mfma_f32_16x16x16_f16 v[28:31], v[134:135], v[126:127], v[28:31]
	v_mfma_f32_16x16x16_f16 v[24:27], v[138:139], v[126:127], v[24:27]
	v_mfma_f32_16x16x16_f16 v[20:23], v[142:143], v[126:127], v[20:23]
	v_mfma_f32_16x16x16_f16 v[16:19], v[146:147], v[126:127], v[16:19]
	v_mfma_f32_16x16x16_f16 v[12:15], v[134:135], v[130:131], v[12:15]
	v_mfma_f32_16x16x16_f16 v[8:11], v[138:139], v[130:131], v[8:11]
	v_mfma_f32_16x16x16_f16 v[4:7], v[142:143], v[130:131], v[4:7]
	v_mfma_f32_16x16x16_f16 v[0:3], v[146:147], v[130:131], v[0:3]
	v_mfma_f32_16x16x16_f16 v[60:63], v[136:137], v[120:121], v[60:63]
	v_mfma_f32_16x16x16_f16 v[56:59], v[140:141], v[120:121], v[56:59]
	v_mfma_f32_16x16x16_f16 v[52:55], v[144:145], v[120:121], v[52:55]
	v_mfma_f32_16x16x16_f16 v[48:51], v[148:149], v[120:121], v[48:51]
	v_mfma_f32_16x16x16_f16 v[44:47], v[136:137], v[124:125], v[44:47]
	v_mfma_f32_16x16x16_f16 v[40:43], v[140:141], v[124:125], v[40:43]
	v_mfma_f32_16x16x16_f16 v[36:39], v[144:145], v[124:125], v[36:39]
	v_mfma_f32_16x16x16_f16 v[32:35], v[148:149], v[124:125], v[32:35]
	v_mfma_f32_16x16x16_f16 v[28:31], v[136:137], v[128:129], v[28:31]
	v_mfma_f32_16x16x16_f16 v[24:27], v[140:141], v[128:129], v[24:27]
	v_mfma_f32_16x16x16_f16 v[20:23], v[144:145], v[128:129], v[20:23]
	v_mfma_f32_16x16x16_f16 v[16:19], v[148:149], v[128:129], v[16:19]
	v_mfma_f32_16x16x16_f16 v[12:15], v[136:137], v[132:133], v[12:15]
	v_mfma_f32_16x16x16_f16 v[8:11], v[140:141], v[132:133], v[8:11]
	v_mfma_f32_16x16x16_f16 v[4:7], v[144:145], v[132:133], v[4:7]
	v_mfma_f32_16x16x16_f16 v[0:3], v[148:149], v[132:133], v[0:3]
	s_setprio 0
	s_barrier
	s_cmp_lt_u32 s17, s10
	s_cbranch_scc1 .LBB0_3
	s_andn2_b64 vcc, exec, s[6:7]
	s_cbranch_vccnz .LBB0_6
	s_barrier
.LBB0_6:
	s_add_i32 s18, s18, s16
	v_or_b32_e32 v64, s18, v71
	v_lshl_or_b32 v65, v72, 2, s11
	v_or_b32_e32 v65, s19, v65
	s_mul_i32 s0, s8, s9
	v_mul_lo_u32 v66, v64, s9
	s_and_b32 s5, s5, 0xffff
	s_lshl_b32 s6, s0, 2
	s_mov_b32 s7, 0x27000
	v_add_lshl_u32 v66, v66, v65, 2
	buffer_store_dwordx4 v[60:63], v66, s[4:7], 0 offen
	buffer_store_dwordx4 v[56:59], v66, s[4:7], 0 offen offset:64
	buffer_store_dwordx4 v[52:55], v66, s[4:7], 0 offen offset:128
	buffer_store_dwordx4 v[48:51], v66, s[4:7], 0 offen offset:192
	s_nop 1
	v_or_b32_e32 v48, 16, v64
	v_mul_lo_u32 v48, v48, s9
	v_add_lshl_u32 v48, v48, v65, 2
	buffer_store_dwordx4 v[44:47], v48, s[4:7], 0 offen
	buffer_store_dwordx4 v[40:43], v48, s[4:7], 0 offen offset:64
	buffer_store_dwordx4 v[36:39], v48, s[4:7], 0 offen offset:128
	buffer_store_dwordx4 v[32:35], v48, s[4:7], 0 offen offset:192
	s_nop 1
	v_or_b32_e32 v32, 32, v64
	v_mul_lo_u32 v32, v32, s9
	v_add_lshl_u32 v32, v32, v65, 2
	buffer_store_dwordx4 v[28:31], v32, s[4:7], 0 offen
	buffer_store_dwordx4 v[24:27], v32, s[4:7], 0 offen offset:64
	buffer_store_dwordx4 v[20:23], v32, s[4:7], 0 offen offset:128
	buffer_store_dwordx4 v[16:19], v32, s[4:7], 0 offen offset:192
	s_nop 1
	v_or_b32_e32 v16, 48, v64
	v_mul_lo_u32 v16, v16, s9
	v_add_lshl_u32 v16, v16, v65, 2
	buffer_store_dwordx4 v[12:15], v16, s[4:7], 0 offen
	buffer_store_dwordx4 v[8:11], v16, s[4:7], 0 offen offset:64
	buffer_store_dwordx4 v[4:7], v16, s[4:7], 0 offen offset:128
	buffer_store_dwordx4 v[0:3], v16, s[4:7], 0 offen offset:192
	s_endpgm
	.section	.rodata,"a",@progbits
	.p2align	6, 0x0
	.amdhsa_kernel gemm
		.amdhsa_group_segment_fixed_size 49152
		.amdhsa_private_segment_fixed_size 0
		.amdhsa_kernarg_size 36
		.amdhsa_user_sgpr_count 2
		.amdhsa_user_sgpr_dispatch_ptr 0
		.amdhsa_user_sgpr_queue_ptr 0
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_user_sgpr_dispatch_id 0
		.amdhsa_user_sgpr_kernarg_preload_length 0
		.amdhsa_user_sgpr_kernarg_preload_offset 0
		.amdhsa_user_sgpr_private_segment_size 0
		.amdhsa_uses_dynamic_stack 0
		.amdhsa_enable_private_segment 0
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_system_sgpr_workgroup_id_y 1
		.amdhsa_system_sgpr_workgroup_id_z 0
		.amdhsa_system_sgpr_workgroup_info 0
		.amdhsa_system_vgpr_workitem_id 0
		.amdhsa_next_free_vgpr 169
		.amdhsa_next_free_sgpr 96
		.amdhsa_accum_offset 168
		.amdhsa_reserve_vcc 1
		.amdhsa_reserve_xnack_mask 1
		.amdhsa_float_round_mode_32 0
		.amdhsa_float_round_mode_16_64 0
		.amdhsa_float_denorm_mode_32 3
		.amdhsa_float_denorm_mode_16_64 3
		.amdhsa_dx10_clamp 1
		.amdhsa_ieee_mode 1
		.amdhsa_fp16_overflow 0
		.amdhsa_tg_split 0
		.amdhsa_exception_fp_ieee_invalid_op 0
		.amdhsa_exception_fp_denorm_src 0
		.amdhsa_exception_fp_ieee_div_zero 0
		.amdhsa_exception_fp_ieee_overflow 0
		.amdhsa_exception_fp_ieee_underflow 0
		.amdhsa_exception_fp_ieee_inexact 0
		.amdhsa_exception_int_div_zero 0
	.end_amdhsa_kernel
	.text
.Lfunc_end0:
	.size	gemm, .Lfunc_end0-gemm

	.set gemm.num_vgpr, 166
	.set gemm.num_agpr, 0
	.set gemm.numbered_sgpr, 24
	.set gemm.num_named_barrier, 0
	.set gemm.private_seg_size, 0
	.set gemm.uses_vcc, 1
	.set gemm.uses_flat_scratch, 0
	.set gemm.has_dyn_sized_stack, 0
	.set gemm.has_recursion, 0
	.set gemm.has_indirect_call, 0
	.p2alignl 6, 3212836864
	.fill 256, 4, 3212836864
	.section	.AMDGPU.gpr_maximums,"",@progbits
	.set amdgpu.max_num_vgpr, 0
	.set amdgpu.max_num_agpr, 0
	.set amdgpu.max_num_sgpr, 0
	.set amdgpu.max_num_named_barrier, 0
	.text
	.section	".note.GNU-stack","",@progbits
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .actual_access:  read_only
        .address_space:  global
        .name:           A
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
      - .actual_access:  read_only
        .address_space:  global
        .name:           B
        .offset:         8
        .size:           8
        .value_kind:     global_buffer
      - .actual_access:  write_only
        .address_space:  global
        .name:           C
        .offset:         16
        .size:           8
        .value_kind:     global_buffer
      - .name:           M
        .offset:         24
        .size:           4
        .value_kind:     by_value
      - .name:           N
        .offset:         28
        .size:           4
        .value_kind:     by_value
      - .name:           K
        .offset:         32
        .size:           4
        .value_kind:     by_value
    .group_segment_fixed_size: 49152
    .kernarg_segment_align: 8
    .kernarg_segment_size: 36
    .max_flat_workgroup_size: 512
    .name:           gemm
    .private_segment_fixed_size: 0
    .sgpr_count:     30
    .sgpr_spill_count: 0
    .symbol:         gemm.kd
    .uniform_work_group_size: 1
    .uses_dynamic_stack: false
    .vgpr_count:     166
    .vgpr_spill_count: 0
    .wavefront_size: 64
amdhsa.target:   amdgcn-amd-amdhsa--gfx942
amdhsa.version:
  - 1
  - 2
...

	.end_amdgpu_metadata
